"""The ZMQ sockets of all event feeds of a process: one context, the same limits."""

import asyncio

import zmq

from kvasir.wire.fleet_secret import secure_client
from kvasir_router.feeds.socket_reader import SocketPoller
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.tasks import SupervisedTasks

MAX_MESSAGE_BYTES = 4 * 2**20
"""A step's events are some 100 KB; a publisher that sends more is disconnected."""
MAX_WAITING = 1024
"""Messages in a socket that is not read for a while. More are lost, and asked for again."""
MAX_REPLAYS = 8
"""Maximum replays at once, of all replicas."""
_KEEPALIVE_SECONDS = 2
"""Between questions to the other machine; three without an answer, and it is gone."""


class EventSockets:
    """Sockets that the event feeds of a process share."""

    def __init__(self, secrets: FleetSecrets, tasks: SupervisedTasks) -> None:
        self.tasks = tasks
        """Tasks of all feeds."""
        self.pump = SocketPoller(tasks)
        self.replays = asyncio.Semaphore(MAX_REPLAYS)
        self._context = zmq.Context(io_threads=1)
        self.secrets = secrets

    def open(self, kind: int, secret: str) -> zmq.Socket[bytes]:
        """A client socket with the limits of all, for an engine that asks for `secret`; "" = for
        one that asks for none."""
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.ipv6 = True
        socket.rcvhwm = MAX_WAITING
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 1000
        # Not ZMQ's heartbeats: they give up a connection whose socket is full, since no answer is
        # read then, and libzmq aborts the process when the next one takes its place (issue 3937)
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = _KEEPALIVE_SECONDS
        socket.tcp_keepalive_cnt = 3
        secure_client(socket, secret)
        return socket

    def close(self) -> None:
        """Close the sockets, when every feed is closed."""
        self._context.destroy(linger=0)
