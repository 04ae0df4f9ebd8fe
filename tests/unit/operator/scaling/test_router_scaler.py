from __future__ import annotations

from typing import Any, cast

import pytest

from kvasir.kube import ApiError
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.kinds import DEPLOYMENTS
from kvasir_operator.scaling.router_scaler import LOOK_SECONDS, Carried, RouterScaler, carried_by
from kvasir_operator.settings import OperatorSettings

SETTINGS = OperatorSettings(
    namespace="k", router_deployment="r", router_in_flight=100, router_requests_per_second=50
)


class World:
    """The routers' Deployment, on an API server that may fail."""

    def __init__(self, replicas: int = 2, settings: OperatorSettings = SETTINGS) -> None:
        metadata = {"namespace": "k", "name": "r", "resourceVersion": "7"}
        self.live: Any = {"metadata": metadata, "spec": {"replicas": replicas}}
        self.failure: ApiError | None = None
        self.asked = 0
        self.now = 1000.0
        self.scaler = RouterScaler(cast(Any, self), settings, Metrics())

    async def get(self, *where: Any) -> Any:
        assert where == (DEPLOYMENTS, "k", "r")
        self.asked += 1
        return self.live

    async def scale(self, *call: Any) -> None:
        kind, namespace, name, replicas, version, manager = call
        assert (kind, namespace, name, version) == (DEPLOYMENTS, "k", "r", "7")
        assert manager == "kvasir-autoscaler"
        if self.failure is not None:
            raise self.failure
        self.live["spec"]["replicas"] = replicas

    async def look(self, in_flight: float = 0, requests: float = 0, *, silent: bool = False) -> int:
        """Replicas after a look at two models that share the load."""
        half = {"concurrency": in_flight / 2, "requests": requests / 2}
        reports = None if silent else {"a": [half], "b": [half]}
        await self.scaler.look(self.now, self.live["spec"]["replicas"], reports)
        self.now += LOOK_SECONDS
        return int(self.live["spec"]["replicas"])

    async def looks(self, seconds: float, in_flight: float = 0) -> set[int]:
        return {await self.look(in_flight) for _ in range(int(seconds / LOOK_SECONDS))}


def test_models_and_routers_add_up() -> None:
    reports = {"a": [{"concurrency": 3, "requests": 60}, {"concurrency": 4, "requests": 0}]}
    assert carried_by({**reports, "b": [{"concurrency": 5, "requests": 60}]}) == Carried(12, 2.0)
    assert carried_by({}) == Carried(0, 0)


async def test_routers_follow_what_is_in_flight_and_what_comes() -> None:
    world = World()
    assert await world.look(in_flight=350) == 4
    assert await world.look(in_flight=350, requests=60 * 300) == 6
    assert max(await world.looks(30, in_flight=5000)) == 8


async def test_they_go_when_nothing_asked_for_more_in_five_minutes() -> None:
    world = World()
    assert await world.look(in_flight=400) == 4
    assert await world.looks(290, in_flight=50) == {4}
    await world.looks(30, in_flight=50)
    assert await world.looks(600) == {2}


async def test_bounds_hold_while_a_router_is_silent_and_nothing_shrinks() -> None:
    world = World(replicas=1)
    assert await world.look(silent=True) == 2
    world = World(replicas=7)
    assert await world.look(silent=True) == 7


async def test_it_looks_no_more_often_than_routers_start() -> None:
    world = World()
    await world.look(in_flight=350)
    world.now -= 1
    await world.look(in_flight=900)
    assert (world.asked, world.live["spec"]["replicas"]) == (1, 4)


@pytest.mark.parametrize("status", [403, 409, 500])
async def test_a_write_that_fails_is_made_again(status: int) -> None:
    world = World()
    world.failure = ApiError(status, "x", "no")
    assert await world.look(in_flight=350) == 2
    world.failure = None
    assert await world.look(in_flight=350) == 4


async def test_what_was_stopped_by_hand_or_is_gone_stays_so() -> None:
    world = World(replicas=0)
    assert await world.look(in_flight=350) == 0
    world.live = None
    await world.scaler.look(world.now, 0, {})
    assert world.asked == 2


async def test_without_a_deployment_nothing_is_asked() -> None:
    world = World(settings=OperatorSettings())
    assert await world.look(in_flight=350) == 2
    assert world.asked == 0
