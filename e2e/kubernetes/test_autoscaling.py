"""The cluster's own HorizontalPodAutoscaler, by what real routers see of a real load."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.proof.deployment import Deployment
from harness.proof.release import Release
from harness.traffic.load import Load
from harness.traffic.outcomes import table
from harness.traffic.plan import Plan
from harness.traffic.truth import right_answers

STREAMS, TARGET, MOST = 30, 10, 3
SECONDS = 180


def autoscaler(deployment: Deployment) -> str:
    """Return an autoscaler that gives up replicas at once, and not after five minutes."""
    metric = {
        "name": "kvasir_concurrency",
        "selector": {"matchLabels": {"deployment": deployment.name}},
    }
    target = {"type": "AverageValue", "averageValue": str(TARGET)}
    scaled = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "name": deployment.name,
    }
    spec = {
        "scaleTargetRef": scaled,
        "minReplicas": 1,
        "maxReplicas": MOST,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
    }
    metadata = {"name": deployment.name, "namespace": deployment.namespace}
    return json.dumps(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": spec,
        }
    )


@pytest.fixture
def measured(release: Release, values: dict[str, Any]) -> Iterator[Release]:
    """The release with external metrics, which it has not at first."""
    release.install({**values, "externalMetrics": {"enabled": True}})
    yield release
    release.install(values)


@pytest.mark.timeout(900)
async def test_it_scales_up_under_load_and_down_after_it_and_loses_nothing(
    cluster: Cluster, measured: Release, deploy: Callable[..., Deployment]
) -> None:
    deployment = await asyncio.to_thread(deploy, "scaled", lifecycle={"drainSeconds": 10})
    plan = Plan(
        endpoints=measured.endpoints(cluster.nodes[0].address),
        model="scaled",
        key=measured.api_key(),
        unary_rate=5.0,
        streams=STREAMS,
        stream_tokens=(80, 120),
    )
    expected = await asyncio.to_thread(right_answers, plan.questions(), "builtin://kvasir-tiny")
    began = time.monotonic()
    async with Load(plan, expected) as load:
        await asyncio.to_thread(cluster.kubectl.apply, autoscaler(deployment))
        await asyncio.to_thread(deployment.wait_ready, MOST, SECONDS)
        print(f"\n1 to {MOST} replicas: {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        await load.finish()
        await asyncio.to_thread(deployment.wait_ready, 1, SECONDS)
        ended = time.monotonic() - began
        print(f"{MOST} to 1, from the last new request on: {ended:.0f} s\n{table(load.steps)}")
        assert not load.failures()
    assert deployment.get()["spec"]["replicas"] == 1
