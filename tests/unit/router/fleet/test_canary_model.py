"""A model with a canary: which replicas get requests, and which are told of as served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec, SplitSpec
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool

SPLIT = SplitSpec("new.1.1", "new", 0.5)
REPLICAS = (
    ReplicaSpec("old-1", "127.0.0.1", 1, revision="old"),
    ReplicaSpec("old-2", "127.0.0.1", 1, revision="old"),
    ReplicaSpec("new-1", "127.0.0.1", 1, revision="new", canary=True),
)


@pytest.fixture
async def fleet() -> Fleet:
    found = Fleet(
        lambda name: RoundRobin(),
        lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
        100,
    )
    found.apply((ModelSpec("m", replicas=REPLICAS),))
    for _, replica in found.replicas():
        replica.health = Health.READY
    found.models["m"].refresh()
    return found


def chosen(model: Model, *, to_canary: bool, tried: tuple[Replica, ...] = ()) -> set[str]:
    names = set()
    for _ in range(10):
        query = Query(Request(), Envelope())
        query.to_canary = to_canary
        choice = model.choose(query, tried)
        assert choice is not None
        names.add(choice.replica.id)
        model.policy.sent(query, choice)
    return names


def apply(fleet: Fleet, split: SplitSpec | None) -> Model:
    fleet.apply((ModelSpec("m", replicas=REPLICAS, split=split),))
    return fleet.models["m"]


def by_id(model: Model, name: str) -> Replica:
    return next(each for each in model.replicas.values() if each.id == name)


async def test_without_a_split_a_canary_gets_nothing_and_is_told_of(fleet: Fleet) -> None:
    model = fleet.models["m"]
    assert chosen(model, to_canary=True) == {"old-1", "old-2"}
    assert set(model.serving) == {"old-1", "old-2", "new-1"}, "readiness gates wait for it"


async def test_with_its_split_it_gets_its_own(fleet: Fleet) -> None:
    model = apply(fleet, SPLIT)
    assert chosen(model, to_canary=True) == {"new-1"}
    assert chosen(model, to_canary=False) == {"old-1", "old-2"}


async def test_a_split_of_another_revision_is_none(fleet: Fleet) -> None:
    model = apply(fleet, replace(SPLIT, revision="newer"))
    assert chosen(model, to_canary=True) == {"old-1", "old-2"}


async def test_what_failed_at_the_canary_goes_to_the_stable_revision(fleet: Fleet) -> None:
    model = apply(fleet, SPLIT)
    assert chosen(model, to_canary=True, tried=(by_id(model, "new-1"),)) == {"old-1", "old-2"}
    assert chosen(model, to_canary=False, tried=(by_id(model, "old-1"),)) == {"old-2"}


async def test_a_canary_that_is_down_costs_nobody(fleet: Fleet) -> None:
    model = apply(fleet, SPLIT)
    by_id(model, "new-1").health = Health.DOWN
    model.refresh()
    assert chosen(model, to_canary=True) == {"old-1", "old-2"}


async def test_a_rollback_takes_requests_away_at_once(fleet: Fleet) -> None:
    apply(fleet, SPLIT)
    model = apply(fleet, None)
    assert chosen(model, to_canary=True) == {"old-1", "old-2"}
    assert model.split is None


async def test_while_it_is_promoted_all_replicas_are_alike(fleet: Fleet) -> None:
    model = apply(fleet, replace(SPLIT, weight=None))
    everyone = set()
    for _ in range(10):
        choice = model.choose(Query(Request(), Envelope()))
        assert choice is not None
        model.policy.sent(Query(Request(), Envelope()), choice)
        everyone.add(choice.replica.id)
    assert everyone == {"old-1", "old-2", "new-1"}


async def test_failures_are_counted_for_their_revision(fleet: Fleet) -> None:
    model = apply(fleet, SPLIT)
    by_id(model, "new-1").failed("500")
    by_id(model, "old-1").failed("reset")
    assert model.split is not None
    samples = model.split.samples()
    assert (samples.canary.errors, samples.stable.errors) == (1, 1)


async def test_samples_last_until_another_split(fleet: Fleet) -> None:
    model = apply(fleet, SPLIT)
    by_id(model, "new-1").failed("500")
    again = apply(fleet, replace(SPLIT)).split
    assert again is not None
    assert again.samples().canary.errors == 1
    other = apply(fleet, replace(SPLIT, id="new.1.2", weight=0.9)).split
    assert other is not None
    assert other.samples().canary.errors == 0


async def test_a_canary_does_not_say_what_the_model_is(fleet: Fleet) -> None:
    model = apply(fleet, SPLIT)
    canary = by_id(model, "new-1")
    stable = by_id(model, "old-1")
    canary.serves = ModelIdentity("a", "a", "a", "a", "a")
    stable.serves = ModelIdentity("b", "b", "b", "b", "b")
    model.refresh()
    assert model.identity == stable.serves
