"""Autoscaling by what real routers see of a real load: the operator's own, and the cluster's
HorizontalPodAutoscaler."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
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


def plan_of(release: Release, cluster: Cluster, model: str) -> Plan:
    """Return a load that one replica is too few for."""
    return Plan(
        endpoints=release.endpoints(cluster.nodes[0].address),
        model=model,
        key=release.api_key(),
        unary_rate=5.0,
        streams=STREAMS,
        stream_tokens=(80, 120),
    )


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
    plan = plan_of(measured, cluster, "scaled")
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


def is_asleep(deployment: Deployment) -> bool:
    """Return True if no replica is asked for, and none is left."""
    status = deployment.get().get("status", {})
    return bool(status.get("phase") == "Idle" and status.get("replicas") == 0)


def first_token_seconds(url: str, key: str | None, model: str) -> float:
    """Return the seconds until a stream of the model begins to answer."""
    body = {"model": model, "stream": True, "max_tokens": 8}
    body["messages"] = [{"role": "user", "content": "Sort: 7 3 9 1"}]
    headers = {"Authorization": f"Bearer {key}"}
    began = time.monotonic()
    with httpx.stream("POST", url, json=body, headers=headers, timeout=SECONDS) as answer:
        assert answer.status_code == httpx.codes.OK, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: ") and '"content"' in line:
                return time.monotonic() - began
    raise AssertionError("the stream ended without a token")


@pytest.mark.timeout(900)
async def test_a_model_goes_to_sleep_and_is_woken_by_a_request(
    cluster: Cluster, release: Release, deploy: Callable[..., Deployment]
) -> None:
    """No autoscaler and no metrics API but the operator's: up under load, to none without, and back
    for one stream, which waits in the router meanwhile."""
    scaling = {
        "minReplicas": 0,
        "maxReplicas": MOST,
        "target": TARGET,
        "idleSeconds": 60,
        "behavior": {"scaleDown": {"stabilizationSeconds": 0}},
    }
    deployment = await asyncio.to_thread(
        deploy, "sleeper", lifecycle={"drainSeconds": 10}, autoscaling=scaling
    )
    plan = plan_of(release, cluster, "sleeper")
    expected = await asyncio.to_thread(right_answers, plan.questions(), "builtin://kvasir-tiny")
    began = time.monotonic()
    async with Load(plan, expected) as load:
        await asyncio.to_thread(deployment.wait_ready, MOST, SECONDS)
        print(f"\n1 to {MOST} replicas: {time.monotonic() - began:.0f} s")
        await load.finish()
        assert not load.failures(), table(load.steps)
    began = time.monotonic()
    await asyncio.to_thread(deployment.wait, lambda: is_asleep(deployment), "no replica", SECONDS)
    print(f"{MOST} to none, from the last new request on: {time.monotonic() - began:.0f} s")
    url = f"{plan.endpoints[0]}/v1/chat/completions"
    waited = await asyncio.to_thread(first_token_seconds, url, plan.key, "sleeper")
    print(f"from none to the first token: {waited:.1f} s")
