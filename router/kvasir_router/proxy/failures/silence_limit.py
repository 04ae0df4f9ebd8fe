"""Time limits of a stream from an engine of which nothing else tells that it works on it."""

import asyncio
from collections.abc import Callable

FIRST_BYTE = "first_byte_timeout"
IDLE = "stream_idle_timeout"

_LATE_SECONDS = 0.5
"""When the timer fires so late the router itself stood still, and what came has not been read."""


class SilenceLimit:
    """Limit for the first byte, and then for each pause; none while the client has paused reading.

    The timer is set anew only when it fires, so that a part of the stream costs a look at the
    clock.
    """

    def __init__(self, first: float, idle: float, exceeded: Callable[[str, float], None]) -> None:
        """`first`, `idle`: seconds, 0 = no limit. `exceeded` is called once at most, with
        FIRST_BYTE or IDLE and the seconds."""
        self._loop = asyncio.get_running_loop()
        self._exceeded = exceeded
        self._limit, self._idle = first, idle
        self._began = False
        self._paused = False
        self._heard_at = self._loop.time()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._set()

    def heard(self) -> bool:
        """A part came; return whether it is the first."""
        self._heard_at = self._loop.time()
        if self._began:
            return False
        self._began = True
        self.end()
        self._limit = self._idle
        self._set()
        return True

    def pause(self) -> None:
        """The client does not keep up: nothing is read."""
        self._paused = True
        self.end()

    def resume(self) -> None:
        """The client keeps up: the engine has the whole time again."""
        self._paused = False
        self._heard_at = self._loop.time()
        self._set()

    def end(self) -> None:
        """Stop looking, until `resume`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if self._limit and self._timer is None and not self._paused:
            self._due = self._heard_at + self._limit
            self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._due > _LATE_SECONDS:
            self._heard_at = now
        if now < self._heard_at + self._limit:
            self._set()
        else:
            self._exceeded(IDLE if self._began else FIRST_BYTE, self._limit)
