"""Bounds of replicas that schedules give at a moment, and the moment at which they change next.

Windows are computed from the clock alone: an operator that starts in the middle of one knows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir.resource.scaling.cron import around, zone_of
from kvasir.resource.scaling.schedule_spec import ScalingSchedule

_RENEWALS = 1500
"""Starts or ends that are followed to find the end of a window: a day's minutes and more."""
_LOOK_AGAIN = timedelta(hours=1)
"""Time for which bounds are kept that nothing is known to change."""


class Window(NamedTuple):
    """One schedule at a moment."""

    active: bool
    change: datetime | None
    """Time at which that changes; None = not as far as was looked."""
    certain: datetime | None
    """Time until which nothing changes; None = for ever."""


class Bounds(NamedTuple):
    """Bounds of replicas at a moment."""

    low: int
    high: int
    active: tuple[str, ...] = ()
    """Titles of the active schedules."""
    change: datetime | None = None
    """Time at which a schedule begins or ends next, as far as was looked."""
    certain: datetime | None = None
    """Time until which all of this holds; None = for ever."""

    def of(self, wanted: Autoscaling) -> Autoscaling:
        """Return `wanted` with these bounds instead of its own."""
        return wanted.model_copy(update={"min_replicas": self.low, "max_replicas": self.high})


def window_at(schedule: ScalingSchedule, now: datetime) -> Window:
    """Return whether the window is open at `now`, and when that changes.

    It is open from a start until the next end; a start and an end at the same moment are a start.
    """
    zone = zone_of(schedule.timezone)
    begun, starts = around(schedule.start, zone, now)
    if schedule.end is None:
        length = timedelta(seconds=schedule.duration_seconds or 0)
        if begun is not None and now < begun + length:
            return _while_renewed(begun, starts, length)
    else:
        ended, ends = around(schedule.end, zone, now)
        if begun is not None and (ended is None or begun >= ended):
            return _until_end(schedule, zone, ends)
    begins = next(starts, None)
    return Window(False, begins, begins)


def _while_renewed(begun: datetime, starts: Iterator[datetime], length: timedelta) -> Window:
    for start in islice(starts, _RENEWALS):
        if start > begun + length:
            break
        begun = start
    else:
        return Window(True, None, begun + length)
    return Window(True, begun + length, begun + length)


def _until_end(schedule: ScalingSchedule, zone: ZoneInfo, ends: Iterator[datetime]) -> Window:
    """Find the first end that is no start as well."""
    end = None
    for end in islice(ends, _RENEWALS):
        if around(schedule.start, zone, end).last != end:
            return Window(True, end, end)
    return Window(True, None, end)


def bounds_at(wanted: Autoscaling, now: datetime) -> Bounds:
    """Return the bounds at `now`, a time with a zone.

    Schedules only raise minReplicas; of several that are active the largest of each bound counts.
    """
    schedules: Sequence[ScalingSchedule] = wanted.schedules or ()
    windows = [(each, window_at(each, now)) for each in schedules]
    active = [each for each, window in windows if window.active]
    highs = (each.max_replicas for each in active)
    changes = (window.change for _, window in windows if window.change is not None)
    certain = (window.certain for _, window in windows if window.certain is not None)
    return Bounds(
        max((wanted.min_replicas, *(each.min_replicas for each in active))),
        max(
            (wanted.max_replicas if high is None else high for high in highs),
            default=wanted.max_replicas,
        ),
        tuple(each.title for each in active),
        min(changes, default=None),
        min(certain, default=None),
    )


class ScheduleClock:
    """The bounds of one model, computed anew only when they may have changed."""

    def __init__(self) -> None:
        self._wanted: Autoscaling | None = None
        self._from = self._until = datetime.min
        self._bounds = Bounds(0, 0)

    def bounds(self, wanted: Autoscaling, now: datetime) -> Bounds:
        """Return `bounds_at` of now; `now` may go back."""
        if not wanted.schedules:
            return Bounds(wanted.min_replicas, wanted.max_replicas)
        if wanted != self._wanted or not self._from <= now < self._until:
            self._bounds = bounds_at(wanted, now)
            self._wanted, self._from = wanted, now
            self._until = self._bounds.certain or now + _LOOK_AGAIN
        return self._bounds
