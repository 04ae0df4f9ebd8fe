"""The autoscaler of one model: a state machine without clock or network."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from kvasir.resource.autoscaling_spec import Autoscaling, ScalingBehavior, ScalingRate
from kvasir_operator.scaling.arrivals import Arrivals
from kvasir_operator.scaling.load import WINDOW_SECONDS, Load
from kvasir_operator.scaling.recommendation import (
    Recommendation,
    Replicas,
    pressure_of,
    recommend,
    targets_of,
)

_SMOOTHED_SECONDS = 45.0
"""Time constant of the smoothed pressure."""
_BEHAVIOR = ScalingBehavior()
"""That of models that ask for none."""


class _Change(NamedTuple):
    at: float
    by: int


class ModelScaler:
    """Looks at a model's load again and again, and says how many replicas there shall be."""

    def __init__(self) -> None:
        self._asked: deque[tuple[float, int]] = deque()
        """Recommendations, each with its time."""
        self._changes: deque[_Change] = deque()
        self._arrivals = Arrivals()
        self._ready_since: float | None = None
        self._idle_since: float | None = None
        self._pressure: float | None = None
        self._pressure_at = 0.0

    def decide(
        self, now: float, wanted: Autoscaling, replicas: Replicas, load: Load
    ) -> Recommendation:
        """Return the replicas for now, and why; call it every few seconds."""
        current, low, high = replicas.wanted, wanted.min_replicas, wanted.max_replicas
        self._note_idle(now, replicas, load)
        if low == 0 and current == 0 and load.concurrency == 0:
            return Recommendation(0, "nothing is asked for")
        if low == 0 and self._idle_seconds(now) >= wanted.idle_seconds:
            self._asked.clear()
            return Recommendation(0, f"no request for {self._idle_seconds(now):.0f} s")
        if current == 0:
            # The first one comes for whoever waits; how many more is seen when it serves
            why = f"minReplicas is {low}" if low else f"{load.concurrency:g} requests wait"
            return Recommendation(max(low, 1), why)
        targets, behavior = targets_of(wanted), wanted.behavior or _BEHAVIOR
        pressure = self._smooth(now, pressure_of(targets, load))
        asked = recommend(targets, load, replicas, pressure)
        if targets.concurrency is not None:
            most = self._arrivals.most(now, load, replicas, targets.concurrency)
            if most is not None and max(current, most) < asked.replicas:
                asked = Recommendation(max(current, most), f"{asked.why}, though fewer arrive")
        self._remember(now, current, max(low, 1, min(asked.replicas, high)), behavior)
        steady = self._stabilised(now, current, behavior)
        allowed = self._rated(now, current, steady, behavior)
        # Bounds hold at once, whatever the rates are
        return Recommendation(max(low, 1, min(allowed, high)), asked.why)

    def changed(self, now: float, by: int) -> None:
        """Note that replicas were changed."""
        self._changes.append(_Change(now, by))

    def _note_idle(self, now: float, replicas: Replicas, load: Load) -> None:
        """Note since when there was no request, though a replica could have answered it."""
        if not replicas.ready:
            self._ready_since = self._idle_since = None
            return
        if self._ready_since is None:
            self._ready_since = now
        if not load.idle:
            self._idle_since = None
        elif self._idle_since is None:
            # None ended in the window of the routers' counts
            self._idle_since = max(now - WINDOW_SECONDS, self._ready_since)

    def _idle_seconds(self, now: float) -> float:
        return now - self._idle_since if self._idle_since is not None else 0.0

    def _smooth(self, now: float, pressure: float | None) -> float | None:
        """Return the exponentially weighted mean of the pressure."""
        if pressure is None or self._pressure is None:
            self._pressure = pressure
        else:
            part = 1 - math.exp((self._pressure_at - now) / _SMOOTHED_SECONDS)
            self._pressure += part * (pressure - self._pressure)
        self._pressure_at = now
        return self._pressure

    def _remember(self, now: float, current: int, asked: int, behavior: ScalingBehavior) -> None:
        """Add what was asked for, and forget what no window and no period reaches any more."""
        rates = (behavior.scale_up, behavior.scale_down)
        window = max(rate.stabilization_seconds for rate in rates)
        period = max(rate.period_seconds for rate in rates)
        if not self._asked:
            # After a start nothing is known of before: what there is was asked for
            self._asked.append((now, current))
        self._asked.append((now, asked))
        while self._asked[0][0] < now - window:
            self._asked.popleft()
        while self._changes and self._changes[0].at < now - period:
            self._changes.popleft()

    def _stabilised(self, now: float, current: int, behavior: ScalingBehavior) -> int:
        """Return the least that was asked for in the window upwards, if that is more than there
        are; else the most in the window downwards, if that is less."""
        up, down = behavior.scale_up, behavior.scale_down
        newest = self._asked[-1][1]
        least = min((n for _, n in self._since(now, up)), default=newest)
        most = max((n for _, n in self._since(now, down)), default=newest)
        return max(current, least) if newest > current else min(current, max(most, newest))

    def _since(self, now: float, rate: ScalingRate) -> list[tuple[float, int]]:
        return [each for each in self._asked if each[0] > now - rate.stabilization_seconds]

    def _rated(self, now: float, current: int, steady: int, behavior: ScalingBehavior) -> int:
        """Return `steady`, or how far the rate lets replicas go in this period."""
        up, down = behavior.scale_up, behavior.scale_down
        if steady > current:
            # The one that a request woke is no part of the rate
            before = max(1, current - self._changed_by(now, up))
            most = before + max(up.pods, math.ceil(before * up.percent / 100))
            return min(steady, max(current, most))
        before = current - self._changed_by(now, down)
        least = before - max(down.pods, math.floor(before * down.percent / 100))
        return max(steady, min(current, least))

    def _changed_by(self, now: float, rate: ScalingRate) -> int:
        """Return the change of replicas in the period."""
        return sum(each.by for each in self._changes if each.at > now - rate.period_seconds)
