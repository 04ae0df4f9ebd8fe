"""A count of an event loop's turns."""

from __future__ import annotations

import asyncio


class LoopClock:
    """Counts the turns of the running loop from its making on."""

    def __init__(self) -> None:
        self.turn = 0
        self._tick()

    def _tick(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self._tick)
