"""One end of the socket between the index process and a worker: frames, bounded both ways."""

import asyncio
import time
from collections.abc import Callable

from kvasir_router.workers.replication.messages import MAX_FRAME_BYTES

READ_LIMIT = 2 * 2**20
"""StreamReader's limit: with twice as many bytes unread, the socket is not read for a while."""

_TURN_SECONDS = 0.0005
"""Seconds of frames handled in one turn of the loop; at least one frame is."""
_HIGH, _LOW = 2**20, 2**18
"""Unsent bytes from which on `drain` waits, and down to which."""


class FramedSocket:
    """Frames over a stream; each has its length before it, four bytes, big-endian."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(_HIGH, _LOW)

    @property
    def unsent(self) -> int:
        """Return the bytes that wait to be sent."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Write one frame; nothing after the end."""
        if not self._writer.is_closing():
            self._writer.writelines((len(frame).to_bytes(4, "big"), frame))

    async def drain(self) -> None:
        """Wait until most of what was written is sent.

        Raises:
            ConnectionError: The connection has ended.
        """
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Return the next frame.

        Raises:
            EOFError: The connection has ended.
            OSError: It has ended with an error.
            ValueError: The frame is too large.
        """
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes is too large")
        return await self._reader.readexactly(size)

    async def receive_all(self, handle: Callable[[bytes], None]) -> None:
        """Call `handle` with each frame until the connection ends; other tasks have their turns
        between. An exception of `handle` is raised."""
        turn_began = time.perf_counter()
        while True:
            try:
                frame = await self.receive()
            except (EOFError, OSError):
                return
            handle(frame)
            if time.perf_counter() - turn_began > _TURN_SECONDS:
                await asyncio.sleep(0)
                turn_began = time.perf_counter()

    def close(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()
