"""Replicas that a load asks for, target by target.

Amounts are shared among replicas as a HorizontalPodAutoscaler does with an average value
(https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details).
Latencies follow a law of their own, since they are no amount that more replicas share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from kvasir.resource.autoscaling_spec import Autoscaling, ScalingTargets
from kvasir_operator.scaling.load import Load

TOLERANCE = 0.1
"""Part of a target by which an amount may miss it without a change."""
CROWDED, ROOMY = 0.55, 0.40
"""Pressure above which replicas come, and below which one goes."""
_MAX_PRESSURE = 2.0
"""A queue that has grown for a while says nothing of how many more would do."""


class Replicas(NamedTuple):
    """The replicas of a model."""

    wanted: int
    """Those in the spec."""
    ready: int
    """Those that serve."""


class Recommendation(NamedTuple):
    """Replicas that one target asks for."""

    replicas: int
    why: str


def targets_of(wanted: Autoscaling) -> ScalingTargets:
    """Return the targets: `metric` and `target` are one."""
    return wanted.targets or ScalingTargets.model_validate(
        {ScalingTargets.model_fields[wanted.metric].alias or wanted.metric: wanted.target}
    )


def recommend(
    targets: ScalingTargets, load: Load, replicas: Replicas, pressure: float | None
) -> Recommendation:
    """Return what the target asks for that asks for most; `pressure` is that of `pressure_of`,
    smoothed."""
    found = [*_amounts(targets, load, replicas)]
    if pressure is not None:
        found.append(_by_pressure(pressure, replicas))
    return max(found, key=lambda each: each.replicas)


def pressure_of(targets: ScalingTargets, load: Load) -> float | None:
    """Return the worst latency as a part of its target, at most 2; 0 without a stream in the
    window, None without a target."""
    pairs = ((load.ttft, targets.ttft_seconds), (load.itl, targets.itl_seconds))
    parts = [(seen or 0.0) / target for seen, target in pairs if target is not None]
    return min(max(parts), _MAX_PRESSURE) if parts else None


def _amounts(targets: ScalingTargets, load: Load, replicas: Replicas) -> Iterator[Recommendation]:
    for name in ("concurrency", "queue", "in_flight_tokens"):
        target = getattr(targets, name)
        if target is not None:
            amount = getattr(load, name)
            yield Recommendation(
                _shared(amount / target, replicas.wanted),
                f"{name} is {amount:g}, {target:g} for each replica",
            )
    if targets.kv_usage is not None:
        used = load.kv_usage * replicas.ready / targets.kv_usage
        why = f"KV usage is {load.kv_usage:.0%} of {replicas.ready}, {targets.kv_usage:.0%} each"
        yield Recommendation(_shared(used, replicas.wanted), why)


def _shared(needed: float, current: int) -> int:
    """Return whole replicas for `needed` ones, or the `current` number if that is close."""
    if current and abs(needed / current - 1) <= TOLERANCE:
        return current
    return math.ceil(needed)


def _by_pressure(pressure: float, replicas: Replicas) -> Recommendation:
    """Return replicas by latency. Those that are still starting will take their part, so upwards
    the pressure counts less by their share; downwards it counts whole."""
    current = replicas.wanted
    credited = pressure * min(1.0, replicas.ready / current) if current else pressure
    why = f"latency is {pressure:.2f} of its target"
    if credited > CROWDED:
        return Recommendation(math.ceil(current * credited / CROWDED), why)
    return Recommendation(current - 1 if pressure < ROOMY else current, why)
