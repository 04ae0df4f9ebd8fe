"""Read ZMQ sockets in the event loop, a bounded time a turn.

A thread would hold the interpreter for milliseconds at a time; here no turn of the loop is longer
than one budget and one message, whatever comes in.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import zmq

from kvasir_router.tasks import SupervisedTasks

BUDGET_SECONDS = 0.0005
_READABLE = int(zmq.POLLIN)
"""A flag's `&` costs more than the rest of the question."""


class SocketPoller:
    """Read one message from each ready socket in turn, within a time budget."""

    def __init__(self, tasks: SupervisedTasks) -> None:
        """Make one whose `tasks` are told what the taker of a message raises."""
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._ready: deque[SocketReader] = deque()
        self._scheduled = False

    def ready(self, reader: "SocketReader") -> None:
        """Schedule a reader that may have something."""
        if reader not in self._ready:
            self._ready.append(reader)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._ready:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        until = time.perf_counter() + BUDGET_SECONDS
        try:
            while self._ready and time.perf_counter() < until:
                reader = self._ready.popleft()
                if self._read_one(reader):
                    self._ready.append(reader)
        finally:
            self._schedule()

    def _read_one(self, reader: "SocketReader") -> bool:
        try:
            return reader.read_one()
        except Exception as error:
            self._tasks.defect("event feed", error)
            return reader.reading


class SocketReader:
    """Pass each message of a socket to `take`, as a list of frames."""

    def __init__(
        self, socket: zmq.Socket[bytes], pump: SocketPoller, take: Callable[[list[bytes]], None]
    ) -> None:
        self.socket = socket
        self._pump = pump
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.fd)
        self.reading = False
        self.resume()

    def pause(self) -> None:
        """Take nothing; what comes waits in the socket, as much as it holds."""
        if self.reading:
            self.reading = False
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Take what has come and will come."""
        if not self.reading:
            self.reading = True
            self._loop.add_reader(self._fd, self._pump.ready, self)
            # ZMQ tells only of changes: what came before is to be looked for
            self._pump.ready(self)

    def look(self) -> None:
        """Look for messages after a send, which may swallow the news of something to read."""
        self._pump.ready(self)

    def close(self) -> None:
        """Close the socket too."""
        self.pause()
        self.socket.close(linger=0)

    def read_one(self) -> bool:
        """Read one message; return True if there was one."""
        # Asked first: the exception of a recv in vain costs as much as a message
        if not (self.reading and int(self.socket.getsockopt(zmq.EVENTS)) & _READABLE):
            return False
        self._take(self.socket.recv_multipart(zmq.NOBLOCK))
        return True
