"""A rollout on a cluster whose GPUs are all in use, by the real Deployment controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvasir.kube.objects import condition
from kvasir_operator.kinds import DEPLOYMENTS

GPUS = 2
SPEC: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": 1}}, "replicas": GPUS}
LONG_AGO = "2026-01-01T00:00:00Z"
"""Longer than a surge pod waits before a replica is given up for it."""
NO_GPU = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
            "lastTransitionTime": LONG_AGO,
        }
    ],
}


class Scheduler:
    """A fate: each pod that has a GPU keeps it until it is gone, the others wait for one."""

    def __init__(self) -> None:
        self.placed: list[str] = []

    def see(self, pods: list[dict[str, Any]]) -> None:
        there = {pod["metadata"]["uid"] for pod in pods}
        self.placed = [uid for uid in self.placed if uid in there]

    def __call__(self, pod: dict[str, Any]) -> dict[str, Any] | None:
        uid = pod["metadata"]["uid"]
        if uid not in self.placed and len(self.placed) < GPUS:
            self.placed.append(uid)
        return None if uid in self.placed else NO_GPU


@pytest.mark.slow
async def test_one_replica_goes_before_one_comes(site: Any, start: Callable[..., Any]) -> None:
    scheduler = Scheduler()
    site.fate = scheduler
    start()
    await site.apply(**SPEC)
    await site.until("Ready", "True")
    fewest = GPUS

    async def rolled_out() -> bool:
        nonlocal fewest
        scheduler.see(await site.engines())
        deployment, resource = await site.get(DEPLOYMENTS), await site.get()
        fewest = min(fewest, (deployment.get("status") or {}).get("readyReplicas", 0))
        ready = condition(resource, "Ready")
        current = ready["observedGeneration"] == resource["metadata"]["generation"]
        return bool(current and ready["status"] == "True")

    async with site.watched() as versions:
        await site.apply(**SPEC, engine={"args": ["--no-overlap"]})
        await site.eventually(rolled_out, "the new revision")
        # A state that may pass faster than one can ask.
        await site.eventually(lambda: _was(versions, "SurgeUnschedulable"))
    assert fewest == GPUS - 1
    rolling = (await site.get(DEPLOYMENTS))["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
    pods = await site.engines()
    assert len(pods) == GPUS
    assert all("--no-overlap" in pod["spec"]["containers"][0]["args"] for pod in pods)


async def _was(versions: list[dict[str, Any]], reason: str) -> bool:
    return any(condition(each, "WorkloadReady").get("reason") == reason for each in versions)
