"""Pods of several GPUs: what they ask for and have, and that a dead rank restarts its pod alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.proof.deployment import Deployment
from harness.proof.release import Release
from harness.traffic.load import Load
from harness.traffic.outcomes import failures, table
from harness.traffic.plan import Plan
from harness.traffic.truth import right_answers

pytestmark = pytest.mark.timeout(900)
RANKS, STREAMS = 2, 20
STREAM_TOKENS = (50, 120, 200)
"""At ten a second: some are running whenever a rank dies."""
SHM_BYTES = RANKS << 30
SETTLE_SECONDS = 5.0
LOOK = """
import json, os, pathlib
ranks = []
for path in pathlib.Path("/proc").iterdir():
    if path.name.isdigit():
        try:
            command = (path / "cmdline").read_text().split(chr(0))
        except OSError:
            continue
        if "kvasir_engine.parallel.worker" in command:
            ranks.append(int(path.name))
shm = os.statvfs("/dev/shm")
print(json.dumps({"ranks": ranks, "shm": shm.f_blocks * shm.f_frsize}))
"""


def inside(deployment: Deployment, pod: str, code: str) -> str:
    """Return what Python code printed in the engine's container."""
    where = ("-n", deployment.namespace, "exec", pod, "-c", "engine")
    return deployment.kubectl(*where, "--", "python", "-c", code)


def look(deployment: Deployment, pod: str) -> dict[str, Any]:
    """The process ids of the further ranks, and the bytes of /dev/shm."""
    return dict(json.loads(inside(deployment, pod, LOOK)))


def restarts(deployment: Deployment) -> dict[str, int]:
    """Restarts of the engine's container, by pod."""
    return {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in deployment.pods()
    }


def lose_a_rank(deployment: Deployment, pod: str) -> None:
    """Kill the second rank; returns when the pod's engine has been started again and serves."""
    (rank,) = look(deployment, pod)["ranks"]
    before = restarts(deployment)
    inside(deployment, pod, f"import os; os.kill({rank}, 9)")
    deployment.wait(lambda: restarts(deployment)[pod] > before[pod], "a restarted container")
    deployment.wait_ready()
    assert restarts(deployment) == {**before, pod: before[pod] + 1}


async def test_a_dead_rank_restarts_its_pod_and_loses_no_stream(
    cluster: Cluster, release: Release, deploy: Callable[..., Deployment]
) -> None:
    gpus = {"resources": {"limits": {"nvidia.com/gpu": RANKS, "memory": "8Gi"}}}
    deployment = await asyncio.to_thread(
        deploy, "pair", replicas=2, parallelism={"tensor": RANKS}, **gpus
    )
    names = []
    for pod in deployment.pods():
        names.append(pod["metadata"]["name"])
        (engine,) = pod["spec"]["containers"]
        for amounts in (engine["resources"]["limits"], engine["resources"]["requests"]):
            assert amounts["nvidia.com/gpu"] == str(RANKS)
        found = await asyncio.to_thread(look, deployment, names[-1])
        assert (len(found["ranks"]), found["shm"]) == (RANKS - 1, SHM_BYTES)

    endpoints = release.endpoints(cluster.nodes[0].address)
    plan = Plan(
        endpoints=endpoints,
        model="pair",
        key=release.api_key(),
        streams=STREAMS,
        stream_tokens=STREAM_TOKENS,
    )
    expected = await asyncio.to_thread(right_answers, plan.questions(), "builtin://kvasir-tiny")
    async with Load(plan, expected) as load:
        await asyncio.sleep(SETTLE_SECONDS)
        # One alone: a request that is in flight at two deaths is not moved again.
        load.step("rank killed")
        await asyncio.to_thread(lose_a_rank, deployment, names[0])
        await asyncio.sleep(SETTLE_SECONDS)
        await load.finish()
    print(f"\n{table(load.steps)}")
    lost = failures(load.steps)
    assert not lost, f"{len(lost)} of the requests failed, first: {json.dumps(lost[:5], indent=1)}"
    assert sum(step.count("stream") for step in load.steps) >= STREAMS
