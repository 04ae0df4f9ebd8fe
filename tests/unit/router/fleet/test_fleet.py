"""The fleet follows its source."""

from collections.abc import Callable
from dataclasses import replace

from kvasir_router.discovery.specs import (
    CanarySpec,
    Departure,
    ModelSpec,
    PolicySpec,
    ReplicaSpec,
)
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.fleet.target import Target
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.policy.registry import make_policy
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.wire.upstream_pool import ConnectionPool


def replica(name: str, port: int = 1, draining: bool = False) -> ReplicaSpec:
    return ReplicaSpec(name, "127.0.0.1", port, draining)


def make_fleet(policy: Callable[[], Policy] = LeastLoad) -> tuple[Fleet, list[str]]:
    events: list[str] = []
    fleet = Fleet(
        lambda spec: make_policy(spec) if spec else policy(),
        lambda spec: ConnectionPool(spec.host, spec.port, connect_timeout=1, idle_timeout=1),
        10,
    )
    fleet.came = lambda model, replica: events.append(f"+{model.name}/{replica.id}")
    fleet.went = lambda model, replica: events.append(f"-{model.name}/{replica.id}")
    return fleet, events


async def test_replicas_come_stay_and_go() -> None:
    fleet, events = make_fleet()
    fleet.apply((ModelSpec("m", ("a",), (replica("r0"), replica("r1"))),))
    kept = fleet.models["m"].replicas["r1", "127.0.0.1", 1]
    kept.health = Health.READY
    kept.acquire()
    fleet.apply((ModelSpec("m", ("b",), (replica("r1"), replica("r2"))),))
    assert events == ["+m/r0", "+m/r1", "-m/r0", "+m/r2"]
    assert fleet.models["m"].replicas["r1", "127.0.0.1", 1] is kept
    assert (kept.health, kept.in_flight) == (Health.READY, 1)
    assert fleet.find("a") is None
    assert fleet.find("b") == fleet.find("m") == Target(fleet.models["m"])


async def test_another_address_is_another_replica() -> None:
    fleet, events = make_fleet()
    fleet.apply((ModelSpec("m", (), (replica("r0", port=1),)),))
    fleet.apply((ModelSpec("m", (), (replica("r0", port=2),)),))
    assert events == ["+m/r0", "-m/r0", "+m/r0"]


async def test_draining_is_no_new_replica() -> None:
    fleet, events = make_fleet()
    fleet.apply((ModelSpec("m", (), (replica("r0"),)),))
    [(_, found)] = fleet.replicas()
    found.health = Health.READY
    fleet.apply((ModelSpec("m", (), (replica("r0", draining=True),)),))
    assert events == ["+m/r0"]
    assert found.draining
    assert not fleet.ready
    fleet.apply((ModelSpec("m", (), (replica("r0"),)),))
    assert fleet.ready


async def test_a_departure_is_no_new_replica_and_may_be_taken_back() -> None:
    fleet, events = make_fleet()
    stays, leaves = replica("r0"), replace(replica("r1", port=2), departure=Departure.NOW)
    fleet.apply((ModelSpec("m", (), (stays, replica("r1", port=2))),))
    model = fleet.models["m"]
    for each in model.replicas.values():
        each.health = Health.READY
    fleet.apply((ModelSpec("m", (), (stays, leaves)),))
    assert [each.id for each in model.usable] == ["r0"]
    fleet.apply((ModelSpec("m", (), (stays, replica("r1", port=2))),))
    assert [each.id for each in model.usable] == ["r0", "r1"]
    assert events == ["+m/r0", "+m/r1"]


async def test_models_go_with_their_replicas() -> None:
    fleet, events = make_fleet()
    fleet.apply((ModelSpec("m", (), (replica("r0"),)), ModelSpec("n", (), (replica("r0"),))))
    fleet.apply((ModelSpec("n", (), (replica("r0"),)),))
    assert events == ["+m/r0", "+n/r0", "-m/r0"]
    assert fleet.find("m") is None
    assert fleet.names() == ["n"]


async def test_an_engine_with_another_feed_is_another_replica() -> None:
    fleet, events = make_fleet()
    spec = replica("r0")
    fleet.apply((ModelSpec("m", (), (spec,)),))
    fleet.apply((ModelSpec("m", (), (replace(spec, grpc_port=5),)),))
    assert events == ["+m/r0", "-m/r0", "+m/r0"]


async def test_an_adapter_and_a_canary_are_names_too() -> None:
    fleet, _ = make_fleet()
    split = (("m", 0.0), ("n", 3.0))
    fleet.apply((ModelSpec("m", adapters=("sql",)), ModelSpec("n"), CanarySpec("c", split)))
    assert fleet.names() == ["m", "sql", "n", "c"]
    assert fleet.find("sql") == Target(fleet.models["m"], "sql")
    assert fleet.find("c") == Target(fleet.models["n"], renamed=True)
    fleet.apply((ModelSpec("n"),))
    assert fleet.find("c") is None
    assert fleet.find("sql") is None


async def test_a_model_may_have_a_policy_of_its_own_and_change_it() -> None:
    fleet, _ = make_fleet()
    fleet.apply((ModelSpec("m", policy=PolicySpec("round_robin")), ModelSpec("n")))
    model = fleet.models["m"]
    policy = model.policy
    assert isinstance(policy, RoundRobin)
    assert isinstance(fleet.models["n"].policy, LeastLoad)
    fleet.apply((ModelSpec("m", policy=PolicySpec("round_robin")),))
    assert fleet.models["m"].policy is policy, "what it remembers stays"
    fleet.apply((ModelSpec("m"),))
    assert fleet.models["m"] is model
    assert isinstance(model.policy, LeastLoad)


async def test_a_cache_that_is_gone_is_forgotten() -> None:
    class Forgetful(LeastLoad):
        def forget_replica(self, replica: Replica) -> None:
            events.append(f"forgot {replica.id}")

    fleet, events = make_fleet(Forgetful)
    fleet.emptied = lambda model, replica: events.append(f"emptied {replica.id}")
    fleet.apply((ModelSpec("m", (), (replica("r0"),)),))
    [(_, found)] = fleet.replicas()
    found.observed(Health.READY)
    found.observed(Health.DOWN)
    fleet.apply(())
    assert events == ["+m/r0", "forgot r0", "emptied r0", "forgot r0", "-m/r0"]
