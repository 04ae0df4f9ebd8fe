"""Rolling windows of fixed memory: the last minute's latencies, as percentiles."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from math import exp, log, sqrt

WINDOW_SECONDS = 60.0
_SLOTS = 12
_SLOT_SECONDS = WINDOW_SECONDS / _SLOTS

_SHORTEST = 0.0005
_LONGEST = 1000.0
_RATIO = 1.08
"""Ratio between two bounds: a percentile is at most 4 % off."""
_BOUNDS = tuple(
    _SHORTEST * exp(i * log(_RATIO))
    for i in range(int(log(_LONGEST / _SHORTEST) / log(_RATIO)) + 2)
)


SlotState = tuple[int, int, int, dict[int, int]]
"""State of one part of a window: its number, observations, those that met their target, and the
count of each bucket that has any."""


class _Slot:
    """Counts of one part of the window."""

    __slots__ = ("counts", "met", "number", "total")

    def __init__(self) -> None:
        self.counts = array("I", bytes(4 * (len(_BOUNDS) + 1)))
        self.number = -1
        self.total = 0
        self.met = 0

    def clear(self, number: int) -> None:
        self.counts = array("I", bytes(4 * (len(_BOUNDS) + 1)))
        self.number = number
        self.total = self.met = 0


class LatencyWindow:
    """Seconds observed in the last minute, in logarithmic buckets, and how many of them met a
    target. 9 KiB, however many there are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots = [_Slot() for _ in range(_SLOTS)]

    def observe(self, seconds: float, met: bool = True) -> None:
        """Count one observation now."""
        number = int(self._clock() // _SLOT_SECONDS)
        slot = self._slots[number % _SLOTS]
        if slot.number != number:
            slot.clear(number)
        slot.counts[bisect_left(_BOUNDS, seconds)] += 1
        slot.total += 1
        slot.met += met

    @property
    def count(self) -> int:
        """Observations in the window."""
        return sum(slot.total for slot in self._current())

    @property
    def met(self) -> float | None:
        """The part of observations that met their target; None without any."""
        count = self.count
        return sum(slot.met for slot in self._current()) / count if count else None

    def percentile(self, part: float) -> float | None:
        """Seconds that `part` (0 to 1) of the observations are below; None without any."""
        slots = self._current()
        rank = part * sum(slot.total for slot in slots)
        if not rank:
            return None
        seen = 0
        for i in range(len(_BOUNDS) + 1):
            seen += sum(slot.counts[i] for slot in slots)
            if seen >= rank:
                break
        upper = _BOUNDS[min(i, len(_BOUNDS) - 1)]
        # The geometric middle of a bucket is as far from its ends, in proportion.
        return upper / sqrt(_RATIO)

    def state(self) -> list[SlotState]:
        """Return what is in the window, for `add` of another one by the same clock."""
        return [
            (slot.number, slot.total, slot.met, {i: n for i, n in enumerate(slot.counts) if n})
            for slot in self._current()
        ]

    def add(self, state: Iterable[SlotState]) -> None:
        """Take over what another window has observed."""
        for number, total, met, counts in state:
            slot = self._slots[number % _SLOTS]
            if slot.number < number:
                slot.clear(number)
            if slot.number == number:
                slot.total += total
                slot.met += met
                for i, count in counts.items():
                    slot.counts[i] += count

    def _current(self) -> list[_Slot]:
        oldest = int(self._clock() // _SLOT_SECONDS) - _SLOTS
        return [slot for slot in self._slots if slot.number > oldest]
