from __future__ import annotations

from datetime import UTC, datetime, timedelta
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
        self.events: list[tuple[str, str]] = []
        self.utc = datetime(2026, 7, 1, 10, tzinfo=UTC)
        clocks = lambda: self.now, lambda: self.utc
        self.autoscaler = Autoscaler(
            cast(Any, self), view, settings, Metrics(), self.changed.append, *clocks
        )

    async def list(self, *_: Any) -> list[dict[str, Any]]:
        return self.autoscalers

    async def create(self, _: Any, event: dict[str, Any], manager: str) -> None:
        assert manager == "kvasir-autoscaler"
        assert event["involvedObject"]["uid"] == "u"
        self.events.append((event["reason"], event["message"]))
        if self.failure is not None:
            raise self.failure

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
        self.utc += timedelta(seconds=seconds)
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


NOON = {"start": "0 12 * * *", "end": "0 13 * * *", "minReplicas": 3, "name": "noon"}


async def looks(world: World, until: datetime) -> list[int]:
    """Look every ten seconds, as replicas follow; return what was written."""
    written = []
    while world.utc < until:
        await world.look(10.0)
        if world.writes:
            written.append(world.writes[-1][3])
            world.resource["spec"]["replicas"] = world.writes.pop()[3]
            world.resource["status"]["readyReplicas"] = written[-1]
    return written


async def test_a_schedule_wakes_a_model_ahead_of_time_and_lets_it_sleep_again() -> None:
    world = World(replicas=0)
    world.resource["spec"]["autoscaling"] = {
        "maxReplicas": 4,
        "minReplicas": 0,
        "schedules": [NOON],
    }
    world.resource["status"]["readyReplicas"] = 0
    world.reports = {"chat": [{"concurrency": 0, "requests": 0}]}
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert await looks(world, noon) == []
    assert await looks(world, noon + timedelta(hours=1)) == [3]
    # It was idle for long when the window ends
    assert await looks(world, noon + timedelta(hours=2)) == [0]
    assert world.events == [
        ("ScheduleStarted", "noon: replicas are from 3 to 4 from now on."),
        ("Scaled", "From 0 replicas to 3: minReplicas is 3."),
        ("ScheduleEnded", "noon: replicas are from 0 to 4 from now on."),
        ("Scaled", "From 3 replicas to 0: no request for 3590 s."),
    ]


async def test_an_operator_that_starts_in_a_window_keeps_its_bounds_without_a_word() -> None:
    world = World()
    world.resource["spec"]["autoscaling"] = {"maxReplicas": 4, "schedules": [NOON]}
    world.utc = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
    world.reports = {"chat": [{"concurrency": 0}]}
    await world.look()
    assert world.writes[0][3] == 3
    assert [reason for reason, _ in world.events] == ["Scaled"]


async def test_a_schedule_holds_while_routers_are_silent_and_nothing_shrinks() -> None:
    world = World()
    world.resource["spec"]["autoscaling"] = {"maxReplicas": 4, "schedules": [NOON]}
    world.utc = datetime(2026, 7, 1, 11, 59, tzinfo=UTC)
    world.reports = None
    assert await looks(world, datetime(2026, 7, 1, 14, tzinfo=UTC)) == [3]
    told = world.autoscaler.problem(KEY)
    assert told is not None
    assert "router r does not answer" in told.message


async def test_an_event_that_is_refused_stops_nothing() -> None:
    world = World()
    world.resource["spec"]["autoscaling"] = {"maxReplicas": 4, "schedules": [NOON]}
    world.utc = datetime(2026, 7, 1, 11, 59, 59, tzinfo=UTC)
    world.reports = {"chat": [{"concurrency": 0}]}
    await world.look()
    world.failure = ApiError(403, "Forbidden", "may not create events")
    assert await world.look() == ScalingProblem()
    assert [call[3] for call in world.writes] == [3]
