"""Requests that ended engines: their like is refused for a while."""

import time
from collections.abc import Callable

MAX_BODIES = 1024
"""More different ones within the time push the oldest out."""


class PoisonTable:
    """Hashes of bodies that were in flight at two engine deaths, each for `seconds`."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[int, float] = {}

    def add(self, body: bytes) -> None:
        """Refuse this body from now on, for as long as the table says."""
        key = hash(body)
        self._until.pop(key, None)
        while len(self._until) >= MAX_BODIES:
            del self._until[next(iter(self._until))]
        self._until[key] = self._clock() + self._seconds

    def holds(self, body: bytes) -> bool:
        """Whether it is to be refused. Costs nothing while there is nothing to refuse."""
        if not self._until:
            return False
        key = hash(body)
        until = self._until.get(key)
        if until is None:
            return False
        if until > self._clock():
            return True
        del self._until[key]
        return False

    def __len__(self) -> int:
        return len(self._until)
