"""No request is lost, whatever happens to the cluster: the load runs through every step."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster import Cluster
from harness.proof.deployment import Deployment
from harness.proof.flows import Flow, Recorder
from harness.proof.release import Release
from harness.proof.steps import Stage, every_step
from harness.traffic.load import Load
from harness.traffic.outcomes import failures, table
from harness.traffic.plan import Plan
from harness.traffic.truth import right_answers
from kvasir.resource import labels

SHORT = {
    *("scale 1 to 4", "image change", "container kill -9", "operator kill -9"),
    *("router rollout", "node power loss"),
}
"""Steps that fit into three minutes."""
SHORT_STREAMS = (50, 80, 120, 200, 320, 400)
"""Tokens of its streams, at ten a second: some are longer than the drain."""
SETTLE_SECONDS = 5.0
"""Seconds of settling before the first step and after each."""
ALL_SETTLE_SECONDS = 20.0
"""The same where all steps run: with it the load lasts ten minutes."""
ENGINE_PORTS = {labels.HTTP_PORT, labels.GRPC_PORT, labels.EVENTS_PORT}


@pytest.mark.timeout(3600)
async def test_no_request_is_lost(
    cluster: Cluster,
    release: Release,
    recorder: Recorder,
    deploy: Callable[..., Deployment],
    other_tag: str,
    tmp_path: Path,
) -> None:
    """KVASIR_E2E_STEPS=all runs every step, about ten minutes, and `name;name` these; the default
    is the short cut."""
    deployment = await asyncio.to_thread(deploy, "load", lifecycle={"drainSeconds": 20})
    plan = Plan(
        endpoints=release.endpoints(cluster.nodes[0].address), model="load", key=release.api_key()
    )
    steps = every_step(Stage(cluster, release, deployment))
    chosen, settle = os.environ.get("KVASIR_E2E_STEPS"), ALL_SETTLE_SECONDS
    if chosen != "all":
        names = chosen.split(";") if chosen else SHORT
        steps = [(name, step) for name, step in steps if name in names]
        plan, settle = replace(plan, stream_tokens=SHORT_STREAMS), SETTLE_SECONDS
    expected = await asyncio.to_thread(right_answers, plan.questions(), "builtin://kvasir-tiny")
    began = time.monotonic()
    async with Load(plan, expected) as load:
        await asyncio.sleep(settle)
        for name, step in steps:
            load.step(name)
            await asyncio.to_thread(step)
            await asyncio.sleep(settle)
            print(f"{time.monotonic() - began:5.0f} s  {name}: {len(load.failures())} failed yet")
        await load.finish()
    print(f"\n{table(load.steps)}\n{time.monotonic() - began:.0f} s in all")
    recorder.stop()
    allowed, refused = await asyncio.to_thread(recorder.verdicts)
    print("flows:", *sorted(allowed), sep="\n  ")
    lost = failures(load.steps)
    (tmp_path / "failures.json").write_text(json.dumps(lost, indent=1))
    assert not lost, f"{len(lost)} of the requests failed, first: {json.dumps(lost[:5], indent=1)}"
    assert not refused, "the policies would have refused these flows"
    assert {Flow("router", "engine", port) for port in ENGINE_PORTS} <= allowed
    # Steps that somebody chose may be over sooner than the load's first minute
    seconds = 0 if chosen and chosen != "all" else 60
    assert sum(step.count("unary") for step in load.steps) >= plan.unary_rate * seconds
    assert sum(step.count("stream") for step in load.steps) >= plan.streams
