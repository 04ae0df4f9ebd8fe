"""A question for missed batches, and its answer."""

import asyncio
import time
from collections.abc import Callable

import zmq

from kvasir_router.feeds.socket_reader import SocketPoller, SocketReader

IDLE_SECONDS = 2.0
"""Seconds without a message after which the replay has failed."""
MAX_SECONDS = 120.0
"""Maximum seconds of all messages of a replay."""


class Replay:
    """Request for one replay."""

    def __init__(
        self,
        make_socket: Callable[[], zmq.Socket[bytes]],
        pump: SocketPoller,
        address: str,
        number: int,
        take: Callable[[list[bytes]], bool],
    ) -> None:
        """`take` is given each message, and returns True for the last one."""
        self._make_socket = make_socket
        self._pump = pump
        self._address = address
        self._number = number
        self._take = take
        self._ended = asyncio.Event()
        self._heard = 0.0
        self._reader: SocketReader | None = None

    async def run(self) -> bool:
        """Return True if the replay came to its end: not too slow, and not too long."""
        if self._ended.is_set():
            return False
        socket = self._make_socket()
        socket.connect(self._address)
        self._reader = SocketReader(socket, self._pump, self._message)
        try:
            socket.send_multipart([b"", self._number.to_bytes(8, "big")], zmq.NOBLOCK)
            self._reader.look()
            return await self._wait()
        finally:
            self._reader.close()

    def abandon(self) -> None:
        """No message is taken after this."""
        self._ended.set()
        if self._reader is not None:
            self._reader.close()

    async def _wait(self) -> bool:
        now = self._heard = time.monotonic()
        until = now + MAX_SECONDS
        while now < min(until, self._heard + IDLE_SECONDS):
            try:
                async with asyncio.timeout(self._heard + IDLE_SECONDS - now):
                    await self._ended.wait()
                return True
            except TimeoutError:
                now = time.monotonic()
        return False

    def _message(self, frames: list[bytes]) -> None:
        self._heard = time.monotonic()
        if not self._ended.is_set() and self._take(frames):
            self._ended.set()
