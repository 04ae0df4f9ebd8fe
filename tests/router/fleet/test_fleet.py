"""The fleet follows its source."""

from kvasir_router.discovery.base import ModelSpec, ReplicaSpec
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.replica import Health
from kvasir_router.policy.least_load import LeastLoad
from kvasir_router.proxy.pool import ConnectionPool


def replica(name: str, port: int = 1, draining: bool = False) -> ReplicaSpec:
    return ReplicaSpec(name, "127.0.0.1", port, draining)


def make_fleet() -> tuple[Fleet, list[str]]:
    events: list[str] = []
    fleet = Fleet(
        LeastLoad,
        lambda host, port: ConnectionPool(host, port, connect_timeout=1, idle_timeout=1),
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
    assert fleet.find("b") is fleet.find("m") is fleet.models["m"]


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


async def test_models_go_with_their_replicas() -> None:
    fleet, events = make_fleet()
    fleet.apply((ModelSpec("m", (), (replica("r0"),)), ModelSpec("n", (), (replica("r0"),))))
    fleet.apply((ModelSpec("n", (), (replica("r0"),)),))
    assert events == ["+m/r0", "+n/r0", "-m/r0"]
    assert fleet.find("m") is None
    assert fleet.names() == ["n"]
