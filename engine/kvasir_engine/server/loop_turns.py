"""Turns of the event loop, shared between streams, bodies that are read and long answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TURN_SECONDS = 0.005
"""Length of a turn after which no further body is begun in it."""
MAX_BODIES = 8
"""Bodies that are read at once. Others wait as the bytes that they are: what the garbage collector
walks through, in one piece, grows with the objects that bodies have become."""


class LoopTurns:
    """Lets work on bodies begin in a turn of the event loop while that turn is short.

    A stream goes on once a turn. Many bodies that come together would all be read in one turn, and
    hold up every stream for the sum. Whoever waits gets a turn in the order of arrival, and each
    turn takes one at least. Long answers pause in the same way while they are rendered.
    """

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._seconds = seconds
        self._began: float | None = None
        """Start of the turn, on the performance counter; None = nobody has asked in it."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._bodies = asyncio.Semaphore(MAX_BODIES)

    @asynccontextmanager
    async def body(self) -> AsyncIterator[None]:
        """Read a body in the block, once its turn comes."""
        async with self._bodies:
            await self.enter()
            yield

    async def enter(self) -> None:
        """Return when work may begin: at once, or in a turn of those after this one."""
        if self._waiting or not self._short():
            await self._wait()

    async def pause(self) -> None:
        """Return when work may go on; to be called after each piece of it.

        It goes on in this turn while that is short, whoever waits.
        """
        if not self._short():
            await self._wait()

    def _short(self) -> bool:
        now = time.perf_counter()
        if self._began is None:
            self._time(now)
            return True
        return now - self._began < self._seconds

    def _time(self, now: float) -> None:
        self._began = now
        asyncio.get_running_loop().call_soon(self._next_turn)

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._began = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # nor cancelled
                self._time(time.perf_counter())
                turn.set_result(None)
                return
