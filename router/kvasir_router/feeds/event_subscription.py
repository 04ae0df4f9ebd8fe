"""A connection to a publisher of events: what it sends, and what becomes of the connection."""

from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from kvasir_router.feeds.socket_reader import SocketPoller, SocketReader

_CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Subscriber(Protocol):
    """Receiver of a subscription's events."""

    def connected(self) -> None:
        """The publisher is there; what it publishes comes after this."""

    def disconnected(self) -> None:
        """Called when it is connected no more. Close the subscription and make a new one: what
        waits in this one may be from an engine that is gone, and ZMQ does not come back by itself
        to one that broke the protocol or the size limit."""

    def refused(self) -> None:
        """Called when the engine refuses the subscription."""

    def published(self, frames: list[bytes]) -> None:
        """A message."""


class Subscription:
    """Begin as it is made."""

    def __init__(
        self, socket: zmq.Socket[bytes], address: str, pump: SocketPoller, subscriber: Subscriber
    ) -> None:
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(_CONNECTED | zmq.EVENT_DISCONNECTED | _REFUSED)
        self._subscriber = subscriber
        self._monitor = SocketReader(monitor, pump, self._monitored)
        self._live = SocketReader(socket, pump, self._message)
        socket.connect(address)

    def read(self, reads: bool) -> None:
        """Take messages, or let them wait in the socket."""
        if reads:
            self._live.resume()
        else:
            self._live.pause()

    def close(self) -> None:
        """Drop what waits, too."""
        self._live.socket.disable_monitor()
        self._monitor.close()
        self._live.close()

    def _message(self, frames: list[bytes]) -> None:
        # That the connection is new is older news than what came over it
        while self._monitor.read_one():
            pass
        if self._live.reading:  # else a replay has just begun, which brings it again
            self._subscriber.published(frames)

    def _monitored(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == _CONNECTED:
            self._subscriber.connected()
        elif event == zmq.EVENT_DISCONNECTED:
            self._subscriber.disconnected()
        else:
            self._subscriber.refused()
