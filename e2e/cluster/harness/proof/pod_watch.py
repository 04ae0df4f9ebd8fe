"""Every pod of ours that there was, however short it lived."""

from __future__ import annotations

import subprocess
import threading
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.binaries import binary
from harness.proof.flows import documents
from kvasir.resource import labels


class PodWatch:
    """`with PodWatch(kubeconfig) as pods:` keeps what was last said of each pod of a component."""

    def __init__(self, kubeconfig: Path) -> None:
        kubectl = (binary("kube"), "kubectl", "--kubeconfig", kubeconfig)
        watch = ("get", "pods", "-A", "-l", labels.COMPONENT, "--watch", "-o", "json")
        self._process = subprocess.Popen(
            [*map(str, kubectl), *watch], stdout=subprocess.PIPE, text=True
        )
        self._pods: dict[str, dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        ended = self._process.poll()
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert error or ended is None, "the watch ended before its time: pods may be missing"

    def seen(self, component: str, deployment: str | None = None) -> list[dict[str, Any]]:
        """Return all pods of a component (and of an LLMDeployment), those that are gone too, oldest
        first."""
        wanted = {labels.COMPONENT: component}
        if deployment is not None:
            wanted[labels.DEPLOYMENT] = deployment
        there = [
            pod
            for pod in list(self._pods.values())
            if wanted.items() <= pod["metadata"]["labels"].items()
        ]
        return sorted(there, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for pod in documents(lines):
                self._pods[pod["metadata"]["uid"]] = pod


def restarts(pod: dict[str, Any]) -> int:
    """Return how often the pod's containers were started again."""
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


def asked_to_go(pod: dict[str, Any]) -> datetime:
    """Return when somebody deleted the pod."""
    metadata = pod["metadata"]
    grace = timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    return datetime.fromisoformat(metadata["deletionTimestamp"]) - grace


def serves_since(pod: dict[str, Any]) -> datetime:
    """Return when the pod became Ready."""
    (ready,) = (each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    assert ready["status"] == "True", ready
    return datetime.fromisoformat(ready["lastTransitionTime"])
