"""Options by which commands name a cluster, as kubectl has them. Nothing heavy is imported."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Default: the kubeconfig's.")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of every namespace.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Default: KUBECONFIG, then ~/.kube/config.")
]
Data = Literal["json", "yaml"]
Output = Annotated[Data | None, typer.Option("--output", "-o", help="Print data, for scripts.")]


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The cluster that a command is about, and where in it."""

    kubeconfig: Path | None = None
    """File; None = what KUBECONFIG, the pod or ~/.kube/config says."""
    context: str | None = None
    """Context of it; None = the current one."""
    namespace: str | None = None
    """Namespace; None = the context's."""
    everywhere: bool = False
    """True for all namespaces."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment in which the kubeconfig is looked for."""
        if self.kubeconfig is None:
            return os.environ
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self) -> list[str]:
        """Return the flags by which kubectl means the same cluster."""
        flags = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig is not None else []
        return [*flags, f"--context={self.context}"] if self.context is not None else flags


def print_data(data: Any, form: Data) -> None:
    """Print plain values as JSON or YAML."""
    if form == "json":
        print(json.dumps(data, indent=2))
        return
    import yaml

    plain = json.loads(json.dumps(data))  # tuples are lists
    print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100), end="")
