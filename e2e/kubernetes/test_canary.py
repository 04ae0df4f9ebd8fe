"""Canaries under load on a full cluster: two bad ones are rolled back, a good one is promoted, and
nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.proof.deployment import Deployment
from harness.proof.release import Release
from harness.traffic.load import Load
from harness.traffic.outcomes import table
from harness.traffic.plan import Plan
from harness.traffic.truth import right_answers

SECONDS = 240
QUICK = ["--speed-profile", "h200-llama-3.1-8b-bf16"]
SLOW = ["--speed-profile", "slow"]
# Bounds that the noise of a machine with few cores stays below; the slow one is 15 times as slow
CANARY = {
    "steps": [{"weight": 20}],
    "analysis": {
        "minSamples": 100,
        "minSeconds": 10,
        "errorIncrease": 0.02,
        "ttft": {"increase": 5.0},
        "itl": {"increase": 3.0},
    },
}


def rollout(deployment: Deployment) -> dict[str, Any]:
    """Return the canary's state, if it is about the newest spec."""
    found = deployment.get()
    status = found.get("status", {})
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return {}
    return dict(status.get("rollout") or {})


def ends(deployment: Deployment, phase: str) -> dict[str, Any]:
    """Return the canary's state once it has come to `phase`; print how long it took."""
    began = time.monotonic()
    deployment.wait(lambda: rollout(deployment).get("phase") == phase, f"a canary {phase}", SECONDS)
    found = rollout(deployment)
    seconds = time.monotonic() - began
    print(f"\n{phase} after {seconds:.0f} s: {found['reason']} {found['message']}")
    return found


def names(deployment: Deployment) -> set[str]:
    """Return the names of the engine pods that stay and are no canary's."""
    pods = deployment.pods()
    return {
        str(pod["metadata"]["name"])
        for pod in pods
        if "kvasir.dev/track" not in pod["metadata"]["labels"]
    }


@pytest.mark.timeout(1200)
async def test_bad_canaries_are_rolled_back_and_a_good_one_is_promoted_under_load(
    cluster: Cluster, release: Release, deploy: Callable[..., Deployment]
) -> None:
    engine = {"config": {"device": "sim", "maxNumSeqs": 128}, "args": QUICK}
    deployment = await asyncio.to_thread(
        deploy,
        "tried",
        replicas=2,
        engine=engine,
        lifecycle={"drainSeconds": 30},
        rollout={"canary": CANARY},
    )
    plan = Plan(
        endpoints=release.endpoints(cluster.nodes[0].address),
        model="tried",
        key=release.api_key(),
        unary_rate=5.0,
        streams=10,
        stream_tokens=(50, 80),
    )
    expected = await asyncio.to_thread(right_answers, plan.questions(), "builtin://kvasir-tiny")
    stable = await asyncio.to_thread(names, deployment)
    async with Load(plan, expected) as load:
        change: dict[str, Any] = {"engine": {"image": "localhost/none:1"}}
        await asyncio.to_thread(deployment.patch, change)
        found = await asyncio.to_thread(ends, deployment, "RolledBack")
        assert found["reason"] == "StartFailed"

        change = {"engine": {"image": None, "args": SLOW}}
        await asyncio.to_thread(deployment.patch, change)
        found = await asyncio.to_thread(ends, deployment, "RolledBack")
        assert found["reason"] in ("ITLIncreased", "TTFTIncreased")
        assert await asyncio.to_thread(names, deployment) == stable

        change = {"engine": {"args": QUICK, "config": {"maxNumSeqs": 64}}}
        await asyncio.to_thread(deployment.patch, change)
        await asyncio.to_thread(ends, deployment, "Promoted")
        await asyncio.to_thread(deployment.wait_ready, 2, SECONDS)
        await load.finish()
        print(table(load.steps))
        assert not load.failures()
    assert not await asyncio.to_thread(names, deployment) & stable
