"""Engines of other types on a real API server: pods that it takes, and the change of a type."""

from __future__ import annotations

from typing import Any

import pytest
from support.operators.downloads import own_claim

from kvasir.resource import labels
from kvasir_operator.kinds import CLAIMS, DEPLOYMENTS, SERVICES

pytestmark = pytest.mark.slow

CUSTOM = {
    "type": "custom",
    "image": "own:1",
    "args": ["--port", "$(KVASIR_PORT)"],
    "ports": {"http": 9000},
    "env": [
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ],
    "envFrom": [{"configMapRef": {"name": "c", "optional": True}}],
    "metrics": {"running": "own:running"},
}


async def test_one_type_takes_anothers_place(site: Any, start: Any) -> None:
    """Each is rolled out when the one before has been taken by the routers."""
    start()
    await site.cluster.create(CLAIMS, own_claim(site.namespace, "c"), "user")
    await site.cluster.merge_status(CLAIMS, site.namespace, "c", {"phase": "Bound"})
    kinds = {
        "custom": CUSTOM,
        "vllm": {"type": "vllm", "image": "v:1", "probes": {"liveness": {"timeoutSeconds": 9}}},
        "sglang": {"type": "sglang", "image": "s:1"},
        None: {"type": "kvasir"},
    }
    for kind, engine in kinds.items():
        await site.apply(model={"uri": "pvc://c/x"}, engine=engine)
        await site.until("Ready", "True")
        pods = await site.engines()
        assert {pod["metadata"]["labels"].get(labels.ENGINE_TYPE) for pod in pods} == {kind}
        template = (await site.get(DEPLOYMENTS))["spec"]["template"]["spec"]
        own = {port["containerPort"] for port in template["containers"][0]["ports"]}
        ports = (await site.get(SERVICES))["spec"]["ports"]
        assert {port["port"] for port in ports} == own
