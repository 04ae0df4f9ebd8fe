"""A question for missed batches, and its answer."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import zmq

from kvasir_router.feeds.socket_reader import SocketPoller, SocketReader
from kvasir_router.progress import WorkProgress

IDLE_SECONDS = 2.0
"""Seconds without a message after which the replay has failed; time in which this process stood
still does not count."""
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
        limit: Callable[[float], AbstractAsyncContextManager[WorkProgress]],
    ) -> None:
        """`take` is given each message, and returns True for the last one; `limit` makes a time
        limit (SupervisedTasks.limit)."""
        self._make_socket = make_socket
        self._pump = pump
        self._address = address
        self._number = number
        self._take = take
        self._limit = limit
        self._ended = asyncio.Event()
        self._progress: WorkProgress | None = None
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
        try:
            async with asyncio.timeout(MAX_SECONDS), self._limit(IDLE_SECONDS) as self._progress:
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def _message(self, frames: list[bytes]) -> None:
        if self._progress is not None:
            self._progress.went_on()
        if not self._ended.is_set() and self._take(frames):
            self._ended.set()
