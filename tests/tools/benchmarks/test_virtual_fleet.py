"""Cache hits that a choice of replicas finds, on llm-d's capacity work in virtual time."""

import random
import sys
from pathlib import Path

import pytest

from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.policy import Policy
from kvasir_router.index import model_index
from kvasir_router.policy import token_load
from kvasir_router.policy.registry import make_policy

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
SCALE = 32


@pytest.fixture
def found(monkeypatch):
    """found(policy, hears, rate): the part of all prompts that was cached, and the requests that
    wait for a replica in the end."""
    for module, name in (
        (token_load, "STALE_TOKENS"),
        (token_load, "REQUEST_TOKENS"),
        (model_index, "BYTES_PER_TOKEN"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back after `divide`
    from benefit_workloads import capacity
    from scaled_router import divide
    from sim_fleet import Scale, Words
    from stream_load import arrive
    from virtual_clock import run_virtual
    from virtual_fleet import VirtualLoad, VirtualRouter

    scaled = divide(SCALE)
    scale = Scale(SCALE, 1.0)
    words = Words(scale)

    def run(policy: str, hears: bool, rate: float) -> tuple[float, int]:
        async def work(load: VirtualLoad) -> tuple[float, int]:
            prompts = capacity(scale, words, random.Random(3))
            await arrive(load, prompts, rate, 60, random.Random(7))
            asked = cached = 0
            for engine in load.router.engines:
                asked += engine.scheduler.counters.prefix_queries
                cached += engine.scheduler.counters.prefix_hits
            for task in load.running:
                task.cancel()
            return cached / asked, load.router.queue.waiting(load.router.model)

        def made() -> Policy:
            return make_policy(PolicySpec(policy), scaled)

        return run_virtual(
            work,
            lambda loop: VirtualLoad(
                VirtualRouter(loop, made(), scale, 8, 307_328, hears=hears), scale, words
            ),
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("hears", [False, True])
def test_affinity_keeps_a_fleet_below_its_knee_that_round_robin_overruns(found, hears) -> None:
    cached, waiting = found("kv_aware", hears, 15)
    without, _ = found("round_robin", hears, 15)
    assert cached > 0.6 > 0.3 > without
    assert not waiting
