"""Kvasir, installed by its chart."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from harness.binaries import binary
from harness.commands import run
from harness.kubectl import Kubectl
from harness.places import REPOSITORY

CHART = REPOSITORY / "charts" / "kvasir"
TIMEOUT = "300s"
ROUTER_NODE = {"kubernetes.io/hostname": "n1"}


def small_values() -> dict[str, Any]:
    """Return the chart's values that a cluster of a small machine without a registry needs, with
    routers and operator on one node."""
    ours = {"tag": "dev"}
    return {
        "global": {"imageRegistry": "localhost/kvasir"},
        "operator": {"image": ours, "nodeSelector": ROUTER_NODE},
        "router": {
            "image": ours,
            "nodeSelector": ROUTER_NODE,
            "replicas": 2,
            "service": {"type": "NodePort"},
            # Half of this machine's two CPUs each would leave nothing for engines.
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        },
        "engine": {"images": {"sim": ours}},
        "downloads": {"image": ours},
        "test": {"device": "sim"},
    }


class Release:
    """One release of the chart `charts/kvasir` in a namespace."""

    def __init__(self, kubectl: Kubectl, name: str = "kvasir", namespace: str = "kvasir") -> None:
        self.kubectl = kubectl
        self.name = name
        self.namespace = namespace

    def install(self, values: dict[str, Any], chart: Path = CHART) -> None:
        """Install it, or upgrade it to `values`; returns when its pods are Ready."""
        self._helm(
            *("upgrade", "--install", self.name, chart, "--create-namespace"),
            *("--values", "-", "--wait", "--timeout", TIMEOUT),
            values=values,
        )

    def upgrade(self, values: dict[str, Any], *flags: str) -> None:
        """Upgrade it to the chart of this checkout as docs/upgrading.md says, with `values` beside
        those that it has; returns at once, unless `flags` say otherwise."""
        command = ("upgrade", self.name, CHART, "--reset-then-reuse-values", "--values", "-")
        self._helm(*command, *flags, values=values)

    def test(self) -> str:
        """Return what `helm test` says."""
        return self._helm("test", self.name, "--timeout", TIMEOUT)

    def uninstall(self) -> None:
        """Remove it; returns when its objects are gone."""
        self._helm("uninstall", self.name, "--wait", "--timeout", TIMEOUT)

    def pods(self, component: str) -> list[dict[str, Any]]:
        """The pods of a component (router, operator) that are not going away."""
        selector = f"kvasir.dev/component={component}"
        found = self.kubectl.json("-n", self.namespace, "get", "pods", "-l", selector)
        return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]

    def router_service(self) -> dict[str, Any]:
        """The Service that clients use: the one with the router's HTTP port."""
        found = self.kubectl.json("-n", self.namespace, "get", "services")
        for service in found["items"]:
            selector = service["spec"].get("selector") or {}
            if selector.get("kvasir.dev/component") == "router" and _http_port(service):
                return dict(service)
        raise LookupError(f"{self.namespace} has no Service of the router")

    def endpoints(self, node_address: str) -> tuple[str, ...]:
        """Base URLs of the router: its ClusterIP and, where it has one, its NodePort."""
        service = self.router_service()
        port = _http_port(service)
        urls = [f"http://{service['spec']['clusterIP']}:{port['port']}"]
        if "nodePort" in port:
            urls.append(f"http://{node_address}:{port['nodePort']}")
        return tuple(urls)

    def api_key(self) -> str | None:
        """The key that the chart made for the first user, if it did."""
        found = self.kubectl.json("-n", self.namespace, "get", "secrets")
        for secret in found["items"]:
            data = secret.get("data") or {}
            if "first-key" in data:
                return base64.b64decode(data["first-key"]).decode()
        return None

    def _helm(self, *arguments: str | Path, values: dict[str, Any] | None = None) -> str:
        return run(
            *(binary("helm"), "--kubeconfig", self.kubectl.kubeconfig, "-n", self.namespace),
            *arguments,
            input=None if values is None else json.dumps(values),
            timeout=400,
        )


def _http_port(service: dict[str, Any]) -> dict[str, Any]:
    ports = [port for port in service["spec"]["ports"] if port.get("name") == "http"]
    return dict(ports[0]) if ports else {}
