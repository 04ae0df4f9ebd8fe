"""Behind the real API server's aggregation, with the real HorizontalPodAutoscaler controller."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import HarnessError
from kvasir.cli.local.ports import free_ports
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir_operator.external_metrics.metrics_server import (
    API_SERVICE,
    Registration,
    serve_external_metrics,
)
from kvasir_operator.settings import OperatorSettings

CRD = Path(__file__).parents[3] / "charts" / "kvasir" / "files" / "crds" / "llmdeployments.yaml"
SERVICE = "kvasir-operator"
METRICS = "/apis/external.metrics.k8s.io/v1beta1"


def own_address() -> str:
    """An address of this machine that is not its loopback: endpoints may not have one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])


def manifests(namespace: str, port: int) -> str:
    """What the chart makes, and endpoints in the place of a pod."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": namespace},
        "spec": {"ports": [{"name": "metrics", "port": 443, "targetPort": port}]},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": SERVICE,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": SERVICE},
        },
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": port}],
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
    }
    api_service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": API_SERVICE},
        "spec": {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": SERVICE, "namespace": namespace, "port": 443},
        },
    }
    return yaml.safe_dump_all([service, endpoints, api_service])


class View:
    """What the operator knows: its resources are the API server's."""

    def __init__(self, plane: Any, routers: Any, namespace: str) -> None:
        self.plane, self.routers, self.namespace = plane, routers, namespace

    def held(self) -> list[dict[str, Any]]:
        found = self.plane.kubectl.json("get", "llmd", "-n", self.namespace)
        items: list[dict[str, Any]] = found["items"]
        return items

    def ready_routers(self, _namespace: str) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.routers.pods()
        return pods


async def until(what: str, condition: Any, seconds: float = 120) -> Any:
    """What `condition()` gives once it is true; it runs beside the event loop."""
    deadline = time.monotonic() + seconds
    while True:
        found = await asyncio.to_thread(condition)
        if found:
            return found
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.2)


@pytest.fixture
async def cluster(control_plane, routers, settings, monkeypatch) -> AsyncIterator[Any]:
    """The namespace of a cluster whose external metrics are ours; one deployment, `m`, in it."""
    plane = control_plane
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    namespace = plane.namespace()
    plane.define(CRD.read_text())
    plane.apply(
        yaml.safe_dump(
            {
                "apiVersion": "kvasir.dev/v1alpha1",
                "kind": "LLMDeployment",
                "metadata": {"name": "m", "namespace": namespace},
                "spec": {"model": {"uri": "builtin://kvasir-tiny"}},
            }
        )
    )
    tell_status(plane, namespace, replicas=1)
    [port] = free_ports(1)
    plane.apply(manifests(namespace, port))
    own = replace(
        settings,
        namespace=namespace,
        external_metrics_port=port,
        external_metrics_service=SERVICE,
    )
    async with Cluster(await load_access()) as client:
        view: Any = View(plane, routers, namespace)
        serving = asyncio.create_task(serve_external_metrics(client, view, own))
        yield namespace
        serving.cancel()
        await asyncio.wait([serving])
    plane.kubectl("delete", "apiservice", API_SERVICE)


def tell_status(plane: Any, namespace: str, replicas: int) -> None:
    accepted = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"replicas": replicas, "selector": "a=b", "conditions": [accepted]}
    plane.kubectl(
        *("patch", "llmd", "m", "-n", namespace, "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )


async def test_an_autoscaler_scales_on_what_routers_see(cluster, control_plane, routers) -> None:
    plane, namespace = control_plane, cluster
    routers.reports = {"m": [{"concurrency": 50}, {"concurrency": 40}]}
    metric = f"{METRICS}/namespaces/{namespace}/kvasir_concurrency?labelSelector=deployment%3Dm"

    def answered() -> Any:
        try:
            return json.loads(plane.kubectl("get", "--raw", metric))
        except HarnessError:
            return None

    found = await until("an answer through the API server", answered)
    [item] = found["items"]
    assert (item["metricLabels"], item["value"]) == ({"model": "m", "deployment": "m"}, "90")
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "m", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "kvasir.dev/v1alpha1",
                "kind": "LLMDeployment",
                "name": "m",
            },
            "minReplicas": 1,
            "maxReplicas": 8,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {
                            "name": "kvasir_concurrency",
                            "selector": {"matchLabels": {"deployment": "m"}},
                        },
                        "target": {"type": "AverageValue", "averageValue": "32"},
                    },
                }
            ],
        },
    }
    await asyncio.to_thread(plane.apply, yaml.safe_dump(autoscaler))

    def replicas() -> int:
        spec = plane.kubectl.json("get", "llmd", "m", "-n", namespace)["spec"]
        return int(spec.get("replicas", 1))

    await until("3 replicas", lambda: replicas() == 3)
    await asyncio.to_thread(tell_status, plane, namespace, 3)
    # Without an answer of every router it stays as it is.
    routers.broken = {"127.0.0.1"}
    routers.reports = {"m": [{"concurrency": 0}, {"concurrency": 1}]}

    def failing() -> bool:
        found = plane.kubectl.json("get", "hpa", "m", "-n", namespace)["status"]["conditions"]
        return any(each["reason"] == "FailedGetExternalMetric" for each in found)

    await until("a failing metric", failing)
    assert await asyncio.to_thread(replicas) == 3
    routers.broken = set()
    await until("1 replica", lambda: replicas() == 1)


async def test_the_bundle_is_kept_right_and_nobody_elses_is_touched(
    control_plane, monkeypatch
) -> None:
    plane, context = control_plane, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    namespace = plane.namespace()
    plane.apply(manifests(namespace, 8443))

    def stored() -> str | None:
        found = plane.kubectl.json("get", "apiservice", API_SERVICE)["spec"].get("caBundle")
        return found and str(found)

    def patch(**spec: Any) -> None:
        change = json.dumps({"spec": spec})
        plane.kubectl("patch", "apiservice", API_SERVICE, "--type=merge", "-p", change)

    async with Cluster(await load_access()) as client:
        settings = OperatorSettings(namespace=namespace, external_metrics_service="other")
        await Registration(client, settings).check(context)
        assert stored() is None
        registration = Registration(client, replace(settings, external_metrics_service=SERVICE))
        await registration.check(context)
        written = stored()
        assert written is not None
        await registration.check(context)
        assert stored() == written
        patch(caBundle=None)
        await registration.check(context)
        assert stored() == written
    plane.kubectl("delete", "apiservice", API_SERVICE)
