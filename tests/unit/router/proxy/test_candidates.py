"""Replicas that may get a request yet, after what it has met with."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.proxy.attempts.candidates import Candidates
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool

Made = tuple[Candidates, Model, list[Replica]]


class Raises(RoundRobin):
    """A policy with a defect."""

    def choose(self, query: Any, candidates: Any) -> Any:
        raise RuntimeError("defect")


@pytest.fixture
async def make() -> Callable[..., Made]:
    """Candidates among ready replicas, one for each node's name."""

    def made(*nodes: str) -> Made:
        fleet = Fleet(
            lambda name: RoundRobin(),
            lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
            100,
        )
        specs = [
            replace(ReplicaSpec(f"r{i}", "127.0.0.1", 1), node=node) for i, node in enumerate(nodes)
        ]
        fleet.apply((ModelSpec("m", (), tuple(specs)),))
        model = fleet.models["m"]
        for replica in model.replicas.values():
            replica.health = Health.READY
        model.refresh()
        candidates = Candidates(Query(Request(), Envelope()), model)
        return candidates, model, list(model.replicas.values())

    return made


def names(candidates: Candidates) -> list[str]:
    """Ask one after the other."""
    found = []
    while (choice := candidates.choose_next()) is not None:
        candidates.asked(choice.replica)
        found.append(choice.replica.id)
    return found


async def test_each_is_asked_once_and_again_after_a_wait(make) -> None:
    candidates, _, _ = make("", "", "")
    assert sorted(names(candidates)) == ["r0", "r1", "r2"]
    assert not candidates.another_serves
    candidates.forget_tried()
    assert candidates.another_serves
    assert sorted(names(candidates)) == ["r0", "r1", "r2"]
    assert not candidates.limited


async def test_one_with_a_fault_is_left_out_after_a_wait_too(make) -> None:
    candidates, _, replicas = make("", "")
    candidates.faulted(replicas[0])
    candidates.forget_tried()
    assert candidates.limited
    assert names(candidates) == ["r1"]


async def test_other_nodes_than_where_one_ended_come_first(make) -> None:
    candidates, _, replicas = make("n1", "n1", "n2")
    candidates.asked(replicas[0])
    candidates.died(replicas[0])
    assert names(candidates) == ["r2", "r1"]


async def test_without_names_of_nodes_any_other_one_is_next(make) -> None:
    candidates, _, replicas = make("", "")
    candidates.asked(replicas[0])
    candidates.died(replicas[0])
    assert names(candidates) == ["r1"]


async def test_a_broken_stream_goes_to_those_alike_until_one_has_it(make) -> None:
    candidates, _, replicas = make("", "", "")
    for replica, dtype in zip(replicas, ("float16", "float16", "bfloat16"), strict=True):
        replica.serves = ModelIdentity("org/m", "r", dtype, None)
    candidates.asked(replicas[0])
    candidates.broken = replicas[0]
    assert candidates.limited
    assert names(candidates) == ["r1"]
    candidates.adopted(replicas[1])
    assert not candidates.limited
    assert sorted(names(candidates)) == ["r0", "r2"]


@pytest.mark.parametrize("died", [False, True])
async def test_a_policy_that_raises_gives_no_choice(make, died: bool) -> None:
    candidates, model, replicas = make("n1", "n2", "n2")
    if died:
        candidates.died(replicas[0])
    sound, model.policy = model.policy, Raises()
    assert candidates.choose() is None
    assert candidates.policy_failed
    model.policy = sound
    assert candidates.choose() is not None
    assert not candidates.policy_failed
