"""The ZMQ sockets of all event feeds of a process: one context, the same limits."""

import asyncio

import zmq

from kvasir.wire.fleet_secret import secure_client
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.feeds.socket_reader import SocketPoller
from kvasir_router.tasks import SupervisedTasks

MAX_MESSAGE_BYTES = 4 * 2**20
"""A step's events are some 100 KB; a publisher that sends more is disconnected."""
MAX_WAITING = 1024
"""Messages in a socket that is not read for a while. More are lost, and asked for again."""
MAX_REPLAYS = 8
"""Maximum replays at once, of all replicas."""
_HEARTBEAT_MS = 2000


class EventSockets:
    """Sockets that the event feeds of a process share."""

    def __init__(self, fleet_secret: str | None, tasks: SupervisedTasks) -> None:
        self.tasks = tasks
        """Tasks of all feeds."""
        self.pump = SocketPoller(tasks)
        self.replays = asyncio.Semaphore(MAX_REPLAYS)
        self._context = zmq.Context(io_threads=1)
        self._secret = fleet_secret or ""

    def open(self, kind: int, engine: EngineKind) -> zmq.Socket[bytes]:
        """A client socket with the limits of all, and the secret where the engine asks for it."""
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.ipv6 = True
        socket.rcvhwm = MAX_WAITING
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 1000
        socket.heartbeat_ivl = _HEARTBEAT_MS
        socket.heartbeat_timeout = 3 * _HEARTBEAT_MS
        if engine is EngineKind.KVASIR:
            secure_client(socket, self._secret)
        return socket

    def close(self) -> None:
        """Close the sockets, when every feed is closed."""
        self._context.destroy(linger=0)
