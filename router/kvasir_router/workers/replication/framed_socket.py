"""One end of the socket between the index process and a worker: frames, bounded both ways."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import structlog

from kvasir_router.workers.replication.messages import MAX_FRAME_BYTES

_log = structlog.get_logger("kvasir_router.workers")

_TURN_SECONDS = 0.0005
"""Seconds of frames taken in one turn of the loop; at least one frame is."""
_MAX_WAITING_BYTES = 4 * 2**20
"""Frames that wait for their turn, before the socket is not read for a while."""
_HIGH, _LOW = 2**20, 2**18
"""Bytes unsent from which on nothing more should be sent that can wait, and again may be."""


class FramedSocket(asyncio.Protocol):
    """Each frame has its length before it, four bytes, big-endian.

    `take` is called with each frame, in turns that take little time; `ended` once at the end;
    `drained` when what was written is nearly sent. An exception of `take` ends the link.
    """

    def __init__(
        self,
        take: Callable[[bytes], None],
        ended: Callable[[], None],
        drained: Callable[[], None] = lambda: None,
    ) -> None:
        self._take = take
        self._ended = ended
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._waiting = 0
        self._scheduled = False
        self._reading = True
        self._closed = False
        self.is_full = False
        """True while more than a megabyte is unsent."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_HIGH, _LOW)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big")
            if size > MAX_FRAME_BYTES:
                self._fail(f"a frame of {size} bytes is too large")
                return
            if len(buffer) - start - 4 < size:
                break
            self._frames.append(bytes(buffer[start + 4 : start + 4 + size]))
            self._waiting += size
            start += 4 + size
        del buffer[:start]
        self._turn_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._frames.clear()
        self._ended()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._drained()

    # For its owner

    @property
    def unsent(self) -> int:
        """Bytes."""
        return self._transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Write one frame; nothing after the end."""
        if not self._closed:
            self._transport.writelines((len(frame).to_bytes(4, "big"), frame))

    def close(self) -> None:
        """End it at once."""
        self._transport.abort()

    # Turns

    def _turn_soon(self) -> None:
        if self._frames and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)
        if self._reading is (self._waiting > _MAX_WAITING_BYTES) and not self._closed:
            self._reading = not self._reading
            (self._transport.resume_reading if self._reading else self._transport.pause_reading)()

    def _turn(self) -> None:
        self._scheduled = False
        until = time.perf_counter() + _TURN_SECONDS
        while self._frames:
            frame = self._frames.popleft()
            self._waiting -= len(frame)
            try:
                self._take(frame)
            except Exception as error:
                self._fail(repr(error))
                return
            if time.perf_counter() > until:
                break
        self._turn_soon()

    def _fail(self, reason: str) -> None:
        _log.error("the link between index and worker is broken off", reason=reason)
        self._frames.clear()
        self.close()
