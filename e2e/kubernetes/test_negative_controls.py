"""The proof can fail: each protection taken away loses requests, which the load notices."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.commands import wait_for
from harness.errors import HarnessError
from harness.proof.deployment import Deployment
from harness.proof.release import Release
from harness.proof.slow_api import slow_api
from harness.traffic.load import Load
from harness.traffic.outcomes import table
from harness.traffic.plan import Plan
from harness.traffic.truth import right_answers

NO_RESCUE = ["--no-migration", "--max-moves=0", "--hold-timeout=0"]
"""Router flags: what fails fails, at once."""
DISCOVERY_DELAY = 20.0
NOBODY_THERE, BROKEN_OFF = "model_not_ready", "replica_failed"
"""Codes of what clients lose: a request that no replica may take, a stream that is not gone on
with."""
BOTH = os.environ.get("KVASIR_E2E_STEPS") == "all"
"""True to show also that protections work where they are on, which the proof itself does."""


def protection(there: bool) -> str:
    """A test's name for it."""
    return "on passes" if there else "off fails"


@pytest.fixture(scope="module")
def changed_release(release: Release, values: dict[str, Any]) -> Iterator[Callable[..., None]]:
    """changed_release(**router values): the release with them; as it was after the last test."""

    def change(**router: Any) -> None:
        release.install({**values, "router": {**values["router"], **router}})

    yield change
    release.install(values)


@pytest.fixture
async def late_news(cluster: Cluster) -> AsyncIterator[list[dict[str, str]]]:
    """Environment of routers that hear everything from the API server DISCOVERY_DELAY late."""
    plane = cluster.control_plane
    async with slow_api(plane, DISCOVERY_DELAY) as port:
        yield [
            {"name": "KUBERNETES_SERVICE_HOST", "value": plane.host},
            {"name": "KUBERNETES_SERVICE_PORT", "value": str(port)},
        ]


async def losses_of_a_rollout(
    cluster: Cluster,
    release: Release,
    deployment: Deployment,
    *,
    gate: bool = True,
    stream_tokens: int = 200,
) -> list[str]:
    """Return how requests of a small load failed while every replica was changed and the old ones
    ended; without the gate nothing waits for routers. A stream gets ten tokens a second."""
    plan = Plan(
        endpoints=release.endpoints(cluster.nodes[0].address)[:1],
        model=deployment.name,
        key=release.api_key(),
        streams=10,
        stream_tokens=(stream_tokens,),
    )
    expected = await asyncio.to_thread(right_answers, plan.questions(), "builtin://kvasir-tiny")
    async with Load(plan, expected) as load:
        await asyncio.sleep(5)
        load.step("rollout")
        await asyncio.to_thread(_roll_out, cluster, release, deployment, gate)
        await load.finish()
    lost = [str(outcome.failure) for outcome in load.failures()]
    counted = Counter(failure[:160] for failure in lost).most_common(5)
    print(f"\n{table(load.steps)}", *(f"{count} x {text}" for text, count in counted), sep="\n")
    return lost


def _roll_out(cluster: Cluster, release: Release, deployment: Deployment, gate: bool) -> None:
    before = {pod["metadata"]["uid"] for pod in deployment.pods()}
    deployment.patch({"engine": {"config": {"maxNumSeqs": 100}}})
    if gate:
        deployment.wait_ready()
    else:
        _roll_out_without_gate(cluster, release, deployment, before)

    def have_ended() -> bool:
        return not before & {pod["metadata"]["uid"] for pod in deployment.pods(leaving=True)}

    deployment.wait(have_ended, "the end of the old pods")


def _roll_out_without_gate(
    cluster: Cluster, release: Release, deployment: Deployment, before: set[str]
) -> None:
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
    """Do what an operator without a gate amounts to: a pod counts as soon as its containers do."""
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
@pytest.mark.parametrize("gate", [False, True] if BOTH else [False], ids=protection)
async def test_without_the_gate_pods_go_before_routers_know_their_successors(
    cluster: Cluster,
    release: Release,
    changed_release: Callable[..., None],
    deploy: Callable[..., Deployment],
    late_news: list[dict[str, str]],
    gate: bool,
) -> None:
    flags = ["--max-moves=0", "--hold-timeout=0"]
    await asyncio.to_thread(changed_release, extraArgs=flags, extraEnv=late_news)
    # Shorter than the delay: engines tell routers of their end, but not of their successors.
    lifecycle = {"preStopSeconds": 3, "drainSeconds": 60}
    deployment = await asyncio.to_thread(deploy, "gated", lifecycle=lifecycle)
    lost = await losses_of_a_rollout(cluster, release, deployment, gate=gate)
    if gate:
        assert not lost
    else:
        assert any(NOBODY_THERE in failure for failure in lost)


@pytest.mark.timeout(900)
async def test_without_drain_streams_break(
    cluster: Cluster,
    release: Release,
    changed_release: Callable[..., None],
    deploy: Callable[..., Deployment],
    late_news: list[dict[str, str]],
) -> None:
    # That a pod is Terminating comes too late to be of use.
    await asyncio.to_thread(changed_release, extraArgs=NO_RESCUE, extraEnv=late_news)
    lifecycle = {"preStopSeconds": 0, "drainSeconds": 0}
    deployment = await asyncio.to_thread(deploy, "undrained", lifecycle=lifecycle)
    lost = await losses_of_a_rollout(cluster, release, deployment)
    assert any(BROKEN_OFF in failure for failure in lost)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("migration", [False, True] if BOTH else [False], ids=protection)
async def test_streams_longer_than_the_drain_need_migration(
    cluster: Cluster,
    release: Release,
    changed_release: Callable[..., None],
    deploy: Callable[..., Deployment],
    migration: bool,
) -> None:
    arguments = [] if migration else ["--no-migration"]
    await asyncio.to_thread(changed_release, extraArgs=arguments)
    lifecycle = {"preStopSeconds": 3, "drainSeconds": 5}
    deployment = await asyncio.to_thread(deploy, "long", lifecycle=lifecycle)
    lost = await losses_of_a_rollout(cluster, release, deployment, stream_tokens=400)
    if migration:
        assert not lost
    else:
        assert any(BROKEN_OFF in failure for failure in lost)
