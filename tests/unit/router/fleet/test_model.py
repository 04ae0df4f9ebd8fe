"""Which replicas of a model may take a request."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kvasir_router.discovery.specs import Departure, EngineKind, ModelSpec, ReplicaSpec, SplitSpec
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.model import RESERVED_SECONDS, Model
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool

QUERY = Query(Request(), Envelope())

STARTING, READY, NOT_READY, SUSPECT, DOWN = Health


@pytest.fixture
async def make_model() -> Callable[..., tuple[Model, list[Replica]]]:
    def make(*health: Health, max_in_flight: int = 100) -> tuple[Model, list[Replica]]:
        fleet = Fleet(
            lambda name: RoundRobin(),
            lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
            max_in_flight,
        )
        specs = tuple(ReplicaSpec(f"r{i}", "127.0.0.1", 1) for i in range(len(health)))
        fleet.apply((ModelSpec("m", (), specs),))
        model = fleet.models["m"]
        replicas = list(model.replicas.values())
        for replica, state in zip(replicas, health, strict=True):
            replica.health = state
        model.refresh()
        return model, replicas

    return make


def usable(model: Model) -> set[str]:
    """Everything the model would choose."""
    names = set()
    for _ in range(20):
        choice = model.choose(QUERY)
        if choice is not None:
            names.add(choice.replica.id)
            model.policy.sent(QUERY, choice)
    return names


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ([READY, READY], {"r0", "r1"}),
        ([READY, STARTING, NOT_READY], {"r0"}),
        ([STARTING, NOT_READY], set()),
        ([READY, SUSPECT], {"r0"}),
        ([READY, DOWN], {"r0"}),
        # More than half are suspect: it is the observation that is doubted.
        ([READY, SUSPECT, SUSPECT], {"r0", "r1", "r2"}),
        ([SUSPECT, SUSPECT], {"r0", "r1"}),
        ([SUSPECT, NOT_READY], {"r0"}),
        # That a connection is refused is no doubt; but it is tried when nothing else is left.
        ([READY, DOWN, DOWN], {"r0"}),
        ([DOWN, DOWN], {"r0", "r1"}),
        ([DOWN, NOT_READY], {"r0"}),
    ],
)
async def test_by_health(make_model, health: list[Health], expected: set[str]) -> None:
    model, _ = make_model(*health)
    assert usable(model) == expected


async def test_those_that_were_tried_are_left_out(make_model) -> None:
    model, replicas = make_model(READY, READY)
    choice = model.choose(QUERY, replicas[:1])
    assert choice is not None
    assert choice.replica is replicas[1]
    assert model.choose(QUERY, replicas) is None


async def test_a_draining_replica_gets_nothing(make_model) -> None:
    model, replicas = make_model(READY, READY)
    replicas[0].draining = True
    model.refresh()
    assert usable(model) == {"r1"}


async def test_a_full_replica_gets_nothing_until_a_request_ends(make_model) -> None:
    model, (first, second) = make_model(READY, READY, max_in_flight=2)
    first.acquire()
    first.acquire()
    assert usable(model) == {"r1"}
    second.acquire()
    second.acquire()
    assert usable(model) == set()
    first.release()
    assert usable(model) == {"r0"}


async def test_replicas_that_fill_and_empty_are_not_judged_anew(make_model) -> None:
    model, (first, second) = make_model(READY, READY, max_in_flight=1)
    room = []
    model.room = lambda: room.append(True)
    second.health = SUSPECT  # nobody has said so
    first.acquire()
    assert model.usable == [second]
    second.acquire()
    assert not model.has_room
    first.release()
    second.release()
    assert model.usable == [first, second]
    assert room == [True]


async def test_a_full_replica_is_still_preferred(make_model) -> None:
    model, (first, _) = make_model(READY, READY, max_in_flight=1)
    assert model.prefers_room(QUERY)  # round_robin would take the first
    first.acquire()
    assert not model.prefers_room(QUERY)
    first.release()
    assert model.prefers_room(QUERY)


class Counting(RoundRobin):
    """Count the choices that it is asked for."""

    choices = 0

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        self.choices += 1
        return super().choose(query, candidates)


@pytest.fixture
def clock(monkeypatch) -> Callable[[float], None]:
    """clock(seconds) goes on by so much."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def go_on(seconds: float) -> None:
        now[0] += seconds

    return go_on


async def test_what_waits_costs_one_choice_however_often_it_is_looked_at(make_model, clock) -> None:
    model, (first, _) = make_model(READY, READY, max_in_flight=1)
    model.policy = policy = Counting()
    waiting = [Query(Request(), Envelope()) for _ in range(32)]
    for query in waiting:  # the first of all that would have the place
        first.acquire()
        assert not model.prefers_room(query)
        first.release()
        assert all(model.prefers_room(each) for each in waiting)
        choice = model.choose(query)
        assert choice is not None
        assert choice.replica is first
    assert policy.choices == len(waiting)


async def test_a_kept_choice_ends_with_its_time_its_policy_and_its_replicas(
    make_model, clock
) -> None:
    model, (first, second) = make_model(READY, READY)
    model.policy = policy = Counting()
    query = Query(Request(), Envelope())
    assert model.prefers_room(query)
    clock(0.9 * RESERVED_SECONDS)
    assert model.prefers_room(query)
    assert policy.choices == 1
    clock(0.2 * RESERVED_SECONDS)
    assert model.prefers_room(query)
    assert policy.choices == 2
    first.health = Health.DOWN
    model.refresh()
    choice = model.choose(query)
    assert choice is not None
    assert choice.replica is second
    model.policy = another = Counting()
    assert model.prefers_room(query)
    assert (policy.choices, another.choices) == (3, 1)


async def test_a_kept_choice_without_room_is_made_anew_of_those_that_have_some(
    make_model, clock
) -> None:
    model, (first, second) = make_model(READY, READY, max_in_flight=1)
    query = Query(Request(), Envelope())
    assert model.prefers_room(query)
    first.acquire()
    assert not model.prefers_room(query)
    choice = model.choose(query)
    assert choice is not None
    assert choice.replica is second


async def test_what_was_tried_is_no_kept_choice(make_model, clock) -> None:
    model, (first, second) = make_model(READY, READY)
    query = Query(Request(), Envelope())
    assert model.prefers_room(query)
    choice = model.choose(query, [first])
    assert choice is not None
    assert choice.replica is second


async def test_an_open_breaker_takes_a_replica_out_and_a_trial_back_in(make_model) -> None:
    model, (first, _) = make_model(READY, READY)
    for _ in range(5):
        first.acquire()
        first.failed("500")
        first.release()
    assert usable(model) == {"r1"}
    first._retry()
    assert usable(model) == {"r0", "r1"}
    first.acquire()
    assert usable(model) == {"r1"}
    first.succeeded()
    first.release()
    assert usable(model) == {"r0", "r1"}


async def test_a_failure_takes_a_replica_out_at_once_and_asks_for_a_probe(make_model) -> None:
    model, (first, _) = make_model(READY, READY)
    first.failed("refused", DOWN)
    assert usable(model) == {"r1"}
    assert first.probe_now.is_set()
    first.observed(READY)
    assert usable(model) == {"r0", "r1"}


async def test_a_replica_that_was_never_ready_stays_starting(make_model) -> None:
    _, (first,) = make_model(STARTING)
    first.observed(DOWN)
    first.observed(SUSPECT)
    assert first.health is STARTING
    first.observed(NOT_READY)
    assert first.health is NOT_READY


async def test_a_model_is_what_its_own_engines_say(make_model) -> None:
    model, replicas = make_model(READY, READY, READY)
    told: list[ModelIdentity | None] = []
    model.identity_changed = lambda: told.append(model.identity)
    replicas[2].spec = replace(replicas[2].spec, engine=EngineKind.VLLM)
    old, new = ModelIdentity("m", "1"), ModelIdentity("m", "2")
    for at, said in ((2, new), (1, new), (0, old), (1, old), (0, new), (0, old)):
        replicas[at].serves = said
        model.refresh()
    assert told == [new, old], "of two, the first in order; a foreign engine's does not count"
    for replica in replicas:
        replica.serves = None
    model.refresh()
    assert told == [new, old, None]


class TestDepartures:
    @pytest.fixture
    def leave(self):
        def leave(model: Model, *replicas: Replica, when: Departure = Departure.LATER) -> None:
            for replica in replicas:
                replica.told_departure = when
            model.refresh()

        return leave

    @pytest.mark.parametrize("when", [Departure.LATER, Departure.NOW])
    async def test_those_that_stay_come_first(self, make_model, leave, when: Departure) -> None:
        model, replicas = make_model(READY, READY)
        leave(model, replicas[0], when=when)
        assert usable(model) == {"r1"}
        leave(model, replicas[0], when=Departure.NONE)
        assert usable(model) == {"r0", "r1"}

    async def test_a_last_one_serves_until_its_end(self, make_model, leave) -> None:
        model, replicas = make_model(READY, NOT_READY)
        leave(model, replicas[0])
        assert usable(model) == {"r0"}
        assert model.serving == ["r0"]

    async def test_it_takes_what_the_others_have_no_room_for(self, make_model, leave) -> None:
        model, replicas = make_model(READY, READY, max_in_flight=1)
        leave(model, replicas[0])
        replicas[1].acquire()
        assert usable(model) == {"r0"}
        query = Query(Request(), Envelope())
        assert model.prefers_room(query), "it does not wait for the one that stays"
        replicas[1].release()
        assert usable(model) == {"r1"}

    async def test_a_revision_of_which_all_leave_is_not_replaced_by_the_other(self) -> None:
        fleet = Fleet(
            lambda name: RoundRobin(),
            lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
            10,
        )
        stable = ReplicaSpec("s", "127.0.0.1", 1, departure=Departure.LATER, revision="old")
        canary = ReplicaSpec("c", "127.0.0.1", 2, revision="new", canary=True)
        split = SplitSpec("1", "new", 0.0)
        fleet.apply((ModelSpec("m", replicas=(stable, canary), split=split),))
        model = fleet.models["m"]
        for replica in model.replicas.values():
            replica.health = READY
        model.refresh()
        assert usable(model) == {"s"}


@pytest.fixture
async def adapters() -> Fleet:
    """A model with adapters a and b: one replica holds a, the other one nothing."""
    fleet = Fleet(
        lambda name: RoundRobin(),
        lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
        100,
    )
    fleet.apply(holding(("a",), ()))
    for replica in fleet.models["m"].replicas.values():
        replica.health = READY
    fleet.models["m"].refresh()
    return fleet


def holding(*held: tuple[str, ...] | None, leaving: int = -1) -> tuple[ModelSpec]:
    """A model whose replicas hold these adapters; one of them leaves."""
    specs = []
    for i, each in enumerate(held):
        departure = Departure.LATER if i == leaving else Departure.NONE
        specs.append(ReplicaSpec(f"r{i}", "127.0.0.1", 1, adapters=each, departure=departure))
    return (ModelSpec("m", (), tuple(specs), adapters=("a", "b")),)


def chosen(model: Model, adapter: str) -> set[str]:
    query = Query(Request(), Envelope(), lora=adapter)
    names = set()
    for _ in range(4):
        choice = model.choose(query)
        if choice is not None:
            names.add(choice.replica.id)
            model.policy.sent(query, choice)
    return names


async def test_an_adapters_requests_go_to_replicas_that_hold_it(adapters: Fleet) -> None:
    model = adapters.models["m"]
    assert (chosen(model, "a"), chosen(model, "b")) == ({"r0"}, set())
    assert [model.holds(name) for name in ("", "a", "b")] == [True, True, False]
    assert not model.serves_beside([model.usable[0]], "a")
    assert model.prefers_room(Query(Request(), Envelope(), lora="b")), "its turn: it sees by itself"


async def test_what_a_replica_holds_changes_without_its_connections(adapters: Fleet) -> None:
    model = adapters.models["m"]
    before = list(model.replicas.values())
    adapters.apply(holding(("b",), ("a", "b")))
    assert list(model.replicas.values()) == before
    assert (chosen(model, "a"), chosen(model, "b")) == ({"r1"}, {"r0", "r1"})
    adapters.apply(holding(None, ()))
    assert chosen(model, "b") == {"r0"}, "None is all of its model's"
    before[0].draining = True
    assert not model.holds("a")


async def test_an_adapter_that_only_a_leaving_replica_holds_is_served(adapters: Fleet) -> None:
    model = adapters.models["m"]
    adapters.apply(holding(("a",), (), leaving=0))
    assert usable(model) == {"r1"}
    assert chosen(model, "a") == {"r0"}


async def test_room_and_service_are_those_of_the_adapter(adapters: Fleet) -> None:
    model = adapters.models["m"]
    holder, other = model.replicas.values()

    def seen() -> list[tuple[bool, bool]]:
        model.refresh()
        return [(model.has_room_for(it), model.can_serve(it)) for it in ("", "a", "b")]

    assert seen() == [(True, True), (True, True), (False, False)]
    for _ in range(holder.capacity):
        holder.acquire()
    assert holder.full
    assert seen() == [(True, True), (False, True), (False, False)]
    for _ in range(holder.capacity):
        holder.release()
    holder.health = Health.SUSPECT
    assert seen() == [(True, True), (False, False), (False, False)]
    other.health = Health.NOT_READY
    assert seen()[1] == (True, False), "more than half are suspect: they are tried"
