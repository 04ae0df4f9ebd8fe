"""One LLMDeployment on a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness.commands import wait_for
from harness.errors import HarnessError
from harness.kubectl import Kubectl

SECONDS = 240


class Deployment:
    """A handle of the LLMDeployment `name` in `namespace`."""

    def __init__(self, kubectl: Kubectl, namespace: str, name: str) -> None:
        self.kubectl = kubectl
        self.namespace = namespace
        self.name = name

    def apply(self, spec: dict[str, Any]) -> None:
        """Create it, or change it to `spec`."""
        document = {
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        }
        self.kubectl.apply(json.dumps(document))

    def patch(self, spec: dict[str, Any]) -> None:
        """Merge `spec` into its spec; None removes a field."""
        change = json.dumps({"spec": spec})
        self._namespaced("patch", "llmdeployment", self.name, "--type=merge", "-p", change)

    def scale(self, replicas: int) -> None:
        """Set the replicas through the scale subresource, as autoscalers do."""
        self._namespaced("scale", f"llmdeployment/{self.name}", f"--replicas={replicas}")

    def delete(self) -> None:
        """Delete it, if it is there; returns when it is gone."""
        options = ("--ignore-not-found", "--timeout=120s")
        self._namespaced("delete", "llmdeployment", self.name, *options)

    def get(self) -> dict[str, Any]:
        """The whole object."""
        found = self.kubectl.json("-n", self.namespace, "get", "llmdeployment", self.name)
        return dict(found)

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of its status, of the newest generation; empty while there is none."""
        found = self.get()
        status, generation = found.get("status", {}), found["metadata"]["generation"]
        if status.get("observedGeneration") != generation:
            return {}
        return next((dict(c) for c in status.get("conditions", ()) if c["type"] == kind), {})

    def is_ready(self, replicas: int | None = None) -> bool:
        """Return True if the newest revision serves, with `replicas` (default: as many as it asks
        for)."""
        found = self.get()
        status = found.get("status", {})
        wanted = found["spec"]["replicas"] if replicas is None else replicas
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return False
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        counts = (status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas"))
        return conditions.get("Ready") == "True" and all(count == wanted for count in counts)

    def wait_ready(self, replicas: int | None = None, seconds: float = SECONDS) -> None:
        """Return once the newest revision serves, and nothing is left of older ones."""
        self.wait(lambda: self.is_ready(replicas), "a Ready LLMDeployment", seconds)

    def wait_condition(self, kind: str, status: str, seconds: float = SECONDS) -> dict[str, Any]:
        """The condition, once its status is `status`."""
        self.wait(lambda: self.condition(kind).get("status") == status, f"{kind} {status}", seconds)
        return self.condition(kind)

    def wait(self, condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        """Return once `condition()` is true; says how the deployment stands when it does not."""
        try:
            wait_for(what, condition, seconds, 0.5)
        except HarnessError as error:
            pods = self._namespaced("get", "pods", "-o", "wide")
            status = json.dumps(self.get().get("status"), indent=1)
            raise HarnessError(f"{error}\n{pods}\n{status}") from None

    def pods(self, *, leaving: bool = False) -> list[dict[str, Any]]:
        """Return the engine pods, oldest first; `leaving`: also those that are going away."""
        selector = f"kvasir.dev/deployment={self.name},kvasir.dev/component=engine"
        found = self.kubectl.json("-n", self.namespace, "get", "pods", "-l", selector)
        there = [
            pod for pod in found["items"] if leaving or "deletionTimestamp" not in pod["metadata"]
        ]
        return sorted(there, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _namespaced(self, *arguments: str) -> str:
        return self.kubectl("-n", self.namespace, *arguments)
