from __future__ import annotations

from typing import Any, cast

import pytest

from kvasir.kube import ApiError
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import WATCHED, View, index_id
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.external_metrics.router_reports import NoReportError
from kvasir_operator.kinds import LLMDEPLOYMENTS
from kvasir_operator.plan.observed import ScalingProblem
from kvasir_operator.scaling.autoscaler import Autoscaler
from kvasir_operator.settings import OperatorSettings

KEY = Key("ns", "m")
BUSY = {"concurrency": 25, "requests": 3}


class World:
    """One LLMDeployment, an API server that has it, and routers that report."""

    def __init__(self, **spec: Any) -> None:
        self.resource: dict[str, Any] = {
            "metadata": {"namespace": "ns", "name": "m", "uid": "u", "resourceVersion": "7"},
            "spec": {
                "replicas": 1,
                "autoscaling": {"maxReplicas": 4, "target": 10},
                "model": {"uri": "builtin://kvasir-tiny", "name": "chat"},
                **spec,
            },
            "status": {"className": labels.DEFAULT_CLASS, "readyReplicas": 1},
        }
        self.reports: dict[str, Any] | None = {"chat": [BUSY]}
        self.autoscalers: list[dict[str, Any]] = []
        self.writes: list[tuple[Any, ...]] = []
        self.failure: ApiError | None = None
        self.changed: list[Key] = []
        self.now = 1000.0
        view = View()
        indexes: dict[str, Any] = {index_id(kind): {} for kind in WATCHED}
        self.index = indexes[index_id(LLMDEPLOYMENTS)]
        self.index[KEY] = [self.resource]
        view.bind(indexes)
        settings = OperatorSettings()
        self.autoscaler = Autoscaler(
            cast(Any, self), view, settings, Metrics(), self.changed.append, lambda: self.now
        )

    async def list(self, *_: Any) -> list[dict[str, Any]]:
        return self.autoscalers

    async def scale(self, *call: Any) -> None:
        self.writes.append(call)
        if self.failure is not None:
            raise self.failure

    async def ask(self) -> dict[str, Any]:
        if self.reports is None:
            raise NoReportError("router r does not answer: it hangs")
        return self.reports

    async def look(self, seconds: float = 1.0) -> ScalingProblem | None:
        await self.autoscaler.look(cast(Any, self))
        self.now += seconds
        return self.autoscaler.problem(KEY)


async def test_replicas_are_written_against_the_version_that_was_seen() -> None:
    world = World()
    assert await world.look() == ScalingProblem()
    assert world.writes == [(LLMDEPLOYMENTS, "ns", "m", 3, "7", "kvasir-autoscaler")]
    assert world.changed == [KEY]
    world.resource["spec"]["replicas"] = 3
    await world.look()
    assert len(world.writes) == 1
    assert world.changed == [KEY]


@pytest.mark.parametrize(
    "spec",
    [
        {"autoscaling": None},
        {"paused": True},
        {"autoscaling": {"maxReplicas": 4, "controller": "hpa"}},
        {"autoscaling": {"maxReplicas": 0}},
    ],
)
async def test_what_is_not_to_be_scaled_is_left_alone(spec: dict[str, Any]) -> None:
    world = World(**spec)
    assert await world.look() is None
    assert world.writes == []


async def test_an_autoscaler_of_others_is_told_at_once_and_left_to_work() -> None:
    world = World()
    target = {"kind": "LLMDeployment", "name": "m"}
    world.autoscalers = [{"metadata": {"name": "x"}, "spec": {"scaleTargetRef": target}}]
    told = await world.look(10.0)
    assert told is not None
    assert told.by == "HorizontalPodAutoscaler x"
    assert world.writes == []
    world.autoscalers = []
    assert await world.look() == ScalingProblem()
    assert len(world.writes) == 1


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        (None, "router r does not answer: it hangs"),
        ({"other": [BUSY]}, "no router knows the model chat yet"),
    ],
)
async def test_an_unknown_load_scales_nothing_and_is_told_when_it_lasts(
    reports: Any, why: str
) -> None:
    world = World()
    world.resource["spec"]["replicas"] = 4
    world.reports = {"chat": [{"concurrency": 40}]}
    assert await world.look() == ScalingProblem()
    world.reports = reports
    for _ in range(15):
        assert await world.look() == ScalingProblem()
    assert await world.look() == ScalingProblem(why)
    assert world.changed == [KEY, KEY]
    world.reports = {"chat": [{"concurrency": 40}]}
    assert await world.look() == ScalingProblem()
    assert world.writes == []


async def test_a_write_that_meets_a_change_is_made_anew() -> None:
    world = World()
    world.failure = ApiError(409, "Conflict", "it has changed")
    assert await world.look() == ScalingProblem()
    world.failure = None
    await world.look()
    assert [call[3] for call in world.writes] == [3, 3]


async def test_a_write_that_is_refused_is_told_when_it_lasts() -> None:
    world = World()
    world.failure = ApiError(403, "Forbidden", "may not patch scale")
    for _ in range(16):
        told = await world.look()
    assert told is not None
    assert "may not patch scale" in told.message


async def test_one_that_is_made_anew_is_another() -> None:
    world = World()
    world.resource["spec"] |= {"replicas": 0}
    world.resource["spec"]["autoscaling"] = {"maxReplicas": 4, "minReplicas": 0}
    world.reports = {"chat": [{"concurrency": 0, "requests": 0}]}
    await world.look(400.0)
    world.resource["metadata"]["uid"] = "v"
    world.resource["spec"]["replicas"] = 1
    # Idle for as long as this one is there, and the minute before: not yet the five that are asked
    await world.look()
    assert world.writes == []
    world.index.clear()
    assert await world.look() is None
