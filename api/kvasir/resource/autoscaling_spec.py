"""`spec.autoscaling`: replicas by what routers see."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kvasir.resource.scaling.schedule_spec import ScalingSchedule
from kvasir.resource.strict_model import StrictModel, rule, rules

CountMetric = Literal["concurrency", "queue", "in_flight_tokens"]

_MIN_AND_MAX = "minReplicas is above maxReplicas; lower it or raise maxReplicas"
_OURS_ALONE = (
    "targets, behavior, schedules and minReplicas 0 are for controller kvasir; remove them, or the"
    " controller"
)
_SCHEDULED = (
    "the largest minReplicas of the spec and a schedule is above that one's maxReplicas; lower it"
    " or raise maxReplicas"
)
_NO_TARGET = "targets has none; give one, such as concurrency, or remove it"
_TARGETS = ("concurrency", "queue", "inFlightTokens", "kvUsage", "ttftSeconds", "itlSeconds")
_Amount = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Seconds = Annotated[float, Field(ge=0.001, le=3600, allow_inf_nan=False)]


class ScalingTargets(StrictModel):
    """Load that one replica is meant to take; the target that asks for most replicas counts."""

    model_config = rules(
        rule(" || ".join(f"has(self.{name})" for name in _TARGETS), _NO_TARGET),
    )

    concurrency: _Amount | None = None
    """Requests that run or wait, for each replica."""

    queue: _Amount | None = None
    """Requests that wait, for each replica."""

    in_flight_tokens: _Amount | None = None
    """Prompt tokens that are still to be computed, for each replica."""

    kv_usage: Annotated[float, Field(ge=0.01, le=1, allow_inf_nan=False)] | None = None
    """Share of the KV cache that is in use, the mean over replicas."""

    ttft_seconds: _Seconds | None = None
    """Time to first token that nine of ten streams shall keep below; there are replicas enough
    while it is about half of that."""

    itl_seconds: _Seconds | None = None
    """Inter-token latency that nine of ten streams shall keep below, as ttftSeconds."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_fields_set:
            raise ValueError(_NO_TARGET)
        return self


class ScalingRate(StrictModel):
    """Limits of the speed in one direction, as of a HorizontalPodAutoscaler."""

    stabilization_seconds: Annotated[int, Field(ge=0, le=3600)]
    """Seconds for which a change must have been asked for before it is made."""

    pods: Annotated[int, Field(ge=0, le=64)]
    """Replicas that may come or go in a period."""

    percent: Annotated[int, Field(ge=0, le=1000)]
    """Share of the replicas, in percent, that may come or go in a period; the larger of the two
    counts."""

    period_seconds: Annotated[int, Field(ge=1, le=1800)] = 15
    """Length of a period."""


class UpRate(ScalingRate):
    """Limits of the speed at which replicas come."""

    stabilization_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """Seconds for which more replicas must have been asked for before they come."""

    pods: Annotated[int, Field(ge=0, le=64)] = 4
    """Replicas that may come in a period."""

    percent: Annotated[int, Field(ge=0, le=1000)] = 100
    """Share of the replicas, in percent, that may come in a period, if that is more than pods."""


class DownRate(ScalingRate):
    """Limits of the speed at which replicas go."""

    stabilization_seconds: Annotated[int, Field(ge=0, le=3600)] = 300
    """Seconds for which fewer replicas must have been asked for before one goes."""

    pods: Annotated[int, Field(ge=0, le=64)] = 1
    """Replicas that may go in a period."""

    percent: Annotated[int, Field(ge=0, le=1000)] = 100
    """Share of the replicas, in percent, that may go in a period, if that is more than pods."""


class ScalingBehavior(StrictModel):
    """Limits of the speed at which replicas follow what is asked for."""

    scale_up: UpRate = UpRate()
    """Speed upwards; the first one of a model that has none comes at once."""

    scale_down: DownRate = DownRate()
    """Speed downwards; the last one goes after idleSeconds."""


class Autoscaling(StrictModel):
    """Bounds of replicas, and what they follow. `spec.replicas` is changed by the scale
    subresource; what was set last stays when this is taken out again."""

    model_config = rules(
        rule("self.minReplicas <= self.maxReplicas", _MIN_AND_MAX),
        rule(
            "self.controller == 'kvasir' || (!has(self.targets) && !has(self.behavior)"
            " && !has(self.schedules) && self.minReplicas > 0)",
            _OURS_ALONE,
        ),
        rule(
            "!has(self.schedules) || self.schedules.all(it, has(it.maxReplicas)"
            " ? self.minReplicas <= it.maxReplicas : it.minReplicas <= self.maxReplicas)",
            _SCHEDULED,
        ),
    )

    controller: Literal["kvasir", "hpa", "keda"] = "kvasir"
    """The one who scales: the operator itself, or a HorizontalPodAutoscaler or a KEDA ScaledObject
    that it makes. Beside an autoscaler of your own the operator scales nothing, and says so."""

    min_replicas: Annotated[int, Field(ge=0, le=64)] = 1
    """Replicas when there is nothing to do; with 0 the last one goes after idleSeconds, and the
    next request waits in a router until there is one again."""

    max_replicas: Annotated[int, Field(ge=1, le=64)]
    """Maximum replicas."""

    metric: CountMetric = "concurrency"
    """Metric that is shared among replicas: requests running or waiting, requests waiting, or
    prompt tokens that are still to be computed."""

    target: _Amount = 16
    """Amount of the metric that one replica is meant to take."""

    targets: ScalingTargets | None = None
    """Several targets, in place of metric and target."""

    idle_seconds: Annotated[int, Field(ge=60, le=604_800)] = 300
    """Seconds without a request after which the last replica goes, with minReplicas 0."""

    behavior: ScalingBehavior | None = None
    """Speed at which replicas follow; by default at once upwards, at most four or twice as many in
    15 s, and downwards to the most that was asked for in the last five minutes."""

    schedules: Annotated[list[ScalingSchedule], Field(min_length=1, max_length=16)] | None = None
    """Windows with bounds of their own, such as more replicas before people come to work."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(_MIN_AND_MAX)
        own = (self.targets, self.behavior, self.schedules)
        ours = any(each is not None for each in own) or self.min_replicas == 0
        if self.controller != "kvasir" and ours:
            raise ValueError(_OURS_ALONE)
        for each in self.schedules or ():
            high = self.max_replicas if each.max_replicas is None else each.max_replicas
            if max(self.min_replicas, each.min_replicas) > high:
                raise ValueError(_SCHEDULED)
        return self
