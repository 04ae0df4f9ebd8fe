"""A queue of keys: each key waits once, is worked on by one at a time, and comes back later after
failures."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

FIRST_DELAY = 0.5
MAX_DELAY = 60.0


class Key(NamedTuple):
    """Name one LLMDeployment."""

    namespace: str
    name: str


KeyType = TypeVar("KeyType", bound=Hashable)


class WorkQueue(Generic[KeyType]):
    """Keys to work on, first in first out, without duplicates."""

    def __init__(self, first_delay: float = FIRST_DELAY, longest: float = MAX_DELAY) -> None:
        self._first_delay = first_delay
        self._longest = longest
        self._ready: asyncio.Queue[KeyType] = asyncio.Queue()
        self._waiting: set[KeyType] = set()
        self._active: set[KeyType] = set()
        self._again: set[KeyType] = set()
        self._timers: dict[KeyType, asyncio.TimerHandle] = {}
        self._failures: dict[KeyType, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: KeyType) -> None:
        """Queue `key` now, or as soon as the work on it that is under way is done."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def offer(self, key: KeyType) -> None:
        """Queue `key` now, unless it is in work or waits for its next time after a failure."""
        if key not in self._active and key not in self._timers:
            self.add(key)

    def add_later(self, key: KeyType, seconds: float) -> None:
        """Queue `key` after `seconds`, unless it is due before."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self.add, key)

    async def next_key(self) -> KeyType:
        """The next key; say `done` or `failed` when the work on it has ended."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._active.add(key)
        return key

    def done(self, key: KeyType) -> None:
        """The work went well."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: KeyType) -> float:
        """The work is to be tried again: after the seconds that are returned, or at once if there
        was news meanwhile."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        # Beyond 20 doublings every delay is the longest
        delay: float = min(self._first_delay * 2 ** min(count, 20), self._longest)
        self._release(key)
        self.add_later(key, delay)
        return delay

    def forget(self, key: KeyType) -> None:
        """The key stands for nothing any more."""
        self._failures.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def _release(self, key: KeyType) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
