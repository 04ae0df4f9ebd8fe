"""kubectl against one cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.binaries import binary
from harness.commands import run


class Kubectl:
    """kubectl with one kubeconfig: `kubectl("get", "pods")` gives what it printed."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def __call__(
        self,
        *arguments: str | Path,
        input: str | None = None,  # noqa: A002 (as in subprocess.run)
        timeout: float = 120,
    ) -> str:
        """Return what `kubectl ARGUMENTS` printed. Raises HarnessError with its complaint."""
        command = (binary("kube"), "kubectl", "--kubeconfig", self.kubeconfig)
        return run(*command, *arguments, input=input, timeout=timeout)

    def json(self, *arguments: str) -> Any:
        """The parsed output of `kubectl ARGUMENTS -o json`."""
        return json.loads(self(*arguments, "-o", "json"))

    def apply(self, text: str) -> str:
        """Server-side apply of YAML or JSON documents."""
        return self("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
