"""The proof can fail: each protection taken away loses requests, which the load notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.commands import wait_for
from harness.errors import HarnessError
from harness.proof.deployment import Deployment
from harness.proof.release import Release
from harness.proof.slow_api import slow_api
from harness.traffic.load import Load
from harness.traffic.outcomes import Step, table
from harness.traffic.plan import Plan
from harness.traffic.truth import right_answers

NO_RESCUE = ["--no-migration", "--max-moves=0", "--hold-timeout=0"]
"""Router flags: what fails fails, at once."""
DISCOVERY_DELAY = 20.0


@pytest.fixture
def changed_release(release: Release, values: dict[str, Any]) -> Iterator[Callable[..., None]]:
    """changed_release(**router values): the release with them, for one test."""

    def change(**router: Any) -> None:
        release.install({**values, "router": {**values["router"], **router}})

    yield change
    release.install(values)


async def rollout_under_load(
    cluster: Cluster, release: Release, deployment: Deployment, *, gate: bool = True
) -> list[Step]:
    """A change of every replica under a small load; without the gate nothing waits for routers."""
    plan = Plan(
        endpoints=release.endpoints(cluster.nodes[0].address)[:1],
        model=deployment.name,
        key=release.api_key(),
        streams=10,
        stream_tokens=(200,),
    )
    expected = await asyncio.to_thread(right_answers, plan.questions(), "builtin://kvasir-tiny")
    async with Load(plan, expected) as load:
        await asyncio.sleep(5)
        load.step("rollout")
        await asyncio.to_thread(_roll_out, cluster, release, deployment, gate)
        await load.finish()
    print(f"\n{table(load.steps)}")
    return load.steps


def _roll_out(cluster: Cluster, release: Release, deployment: Deployment, gate: bool) -> None:
    before = {pod["metadata"]["uid"] for pod in deployment.pods()}
    deployment.patch({"engine": {"config": {"maxNumSeqs": 100}}})
    if gate:
        deployment.wait_ready()
        return
    wait_for("new pods", lambda: _new_pods(deployment, before), 120, 0.2)
    operator = release.pods("operator")[0]
    container = operator["status"]["containerStatuses"][0]["containerID"]
    node = cluster.node(operator["spec"]["nodeName"])
    node.pause_container(container)
    try:
        while {pod["metadata"]["uid"] for pod in deployment.pods()} & before:
            for pod in _new_pods(deployment, before):
                _open_gate(deployment, pod["metadata"]["name"])
    finally:
        node.resume_container(container)


def _new_pods(deployment: Deployment, before: set[str]) -> list[dict[str, Any]]:
    return [pod for pod in deployment.pods() if pod["metadata"]["uid"] not in before]


def _open_gate(deployment: Deployment, pod: str) -> None:
    """What an operator without a gate amounts to: a pod counts as soon as its containers do."""
    condition = {"type": "kvasir.dev/routed", "status": "True"}
    change = json.dumps({"status": {"conditions": [condition]}})
    try:
        deployment.kubectl(
            *("-n", deployment.namespace, "patch", "pod", pod, "--subresource=status"),
            *("--type=strategic", "-p", change),
        )
    except HarnessError as error:
        if "not found" not in str(error):
            raise


@pytest.mark.timeout(900)
@pytest.mark.parametrize("gate", [False, True], ids=["gate off fails", "gate on passes"])
async def test_without_the_gate_pods_go_before_routers_know_their_successors(
    cluster: Cluster,
    release: Release,
    changed_release: Callable[..., None],
    deploy: Callable[..., Deployment],
    gate: bool,
) -> None:
    async with slow_api(cluster.control_plane, DISCOVERY_DELAY) as port:
        server = [
            {"name": "KUBERNETES_SERVICE_HOST", "value": cluster.control_plane.host},
            {"name": "KUBERNETES_SERVICE_PORT", "value": str(port)},
        ]
        await asyncio.to_thread(
            changed_release, extraArgs=["--max-moves=0", "--hold-timeout=0"], extraEnv=server
        )
        # Longer than the delay: a router has to hear of the end before it comes.
        lifecycle = {"preStopSeconds": 40, "drainSeconds": 60}
        deployment = await asyncio.to_thread(deploy, "gated", lifecycle=lifecycle)
        steps = await rollout_under_load(cluster, release, deployment, gate=gate)
    failed = sum(len(step.failures()) for step in steps)
    assert (failed == 0) is gate


@pytest.mark.timeout(900)
async def test_without_drain_streams_break(
    cluster: Cluster,
    release: Release,
    changed_release: Callable[..., None],
    deploy: Callable[..., Deployment],
) -> None:
    await asyncio.to_thread(changed_release, extraArgs=NO_RESCUE)
    lifecycle = {"preStopSeconds": 0, "drainSeconds": 0}
    deployment = await asyncio.to_thread(deploy, "undrained", lifecycle=lifecycle)
    steps = await rollout_under_load(cluster, release, deployment)
    assert any(step.failures() for step in steps)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("migration", [False, True], ids=["off fails", "on passes"])
async def test_streams_longer_than_the_drain_need_migration(
    cluster: Cluster,
    release: Release,
    values: dict[str, Any],
    changed_release: Callable[..., None],
    deploy: Callable[..., Deployment],
    migration: bool,
) -> None:
    moves = values["router"]["extraArgs"]
    arguments = moves if migration else [*moves, "--no-migration"]
    await asyncio.to_thread(changed_release, extraArgs=arguments)
    deployment = await asyncio.to_thread(deploy, "long", lifecycle={"drainSeconds": 5})
    steps = await rollout_under_load(cluster, release, deployment)
    failed = sum(len(step.failures()) for step in steps)
    assert (failed == 0) is migration
