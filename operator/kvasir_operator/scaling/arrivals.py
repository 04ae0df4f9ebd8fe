"""Replicas that arrivals ask for, where a backlog would ask for more.

Requests that pile up while replicas start say how late these are, not how many more are needed: by
Little's law the requests that are in progress with replicas enough are the arrivals a second times
the time that each takes then.
"""

from __future__ import annotations

import math
from collections import deque

from kvasir_operator.scaling.load import WINDOW_SECONDS, Load
from kvasir_operator.scaling.recommendation import Replicas

_LEARN_SECONDS = 120.0
"""Time constant of the mean of the time that a request takes."""
_MARGIN = 1.1
"""Factor above what arrivals ask for: the rate is that of a whole window, and may be rising."""


class Arrivals:
    """Estimates of one model: the rate of its requests, and the time of one without a backlog."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        """Requests in progress in the last window, each with its time."""
        self._seconds: float | None = None
        """Time that a request takes when there are replicas enough; None = not known yet."""
        self._learned_at = 0.0

    def most(self, now: float, load: Load, replicas: Replicas, target: float) -> int | None:
        """Return the most replicas that `target` requests for each can be needed now; None = no
        bound is known, or the backlog is no matter of replicas that start."""
        rate = self._rate(now, load)
        crowded = load.concurrency > target * max(replicas.ready, 1)
        if rate is None or rate <= 0:
            return None
        if not crowded:
            self._learn(now, load.concurrency / rate)
            return None
        if self._seconds is None or replicas.ready >= replicas.wanted:
            return None
        return max(1, math.ceil(_MARGIN * rate * self._seconds / target))

    def _rate(self, now: float, load: Load) -> float | None:
        """Return the arrivals a second: those that ended in the window, and those that are more
        than at its beginning; None before a window has passed."""
        self._seen.append((now, load.concurrency))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        if now - began < WINDOW_SECONDS:
            return None
        return (load.requests + load.concurrency - before) / WINDOW_SECONDS

    def _learn(self, now: float, seconds: float) -> None:
        if self._seconds is None:
            self._seconds = seconds
        part = 1 - math.exp((self._learned_at - now) / _LEARN_SECONDS)
        self._seconds += part * (seconds - self._seconds)
        self._learned_at = now
