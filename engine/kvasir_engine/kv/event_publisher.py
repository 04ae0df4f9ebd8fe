"""Publisher of block events over ZMQ in vLLM's wire format, on a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import zmq

from kvasir.secret_file import LOOK_SECONDS
from kvasir.wire.fleet_secret import secure_server
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir.wire.kv_events import (
    REPLAY_END,
    AllBlocksCleared,
    EventBatch,
    KVEvent,
    encode_batch,
)

_log = logging.getLogger(__name__)
_LINGER_MS = 200
_UNBIND_MS = 1000
_BIND_AGAIN_SECONDS = 0.02


class KVEventPublisher:
    """A PUB socket for events as they come and a ROUTER socket that replays recent ones.

    `publish` never blocks: with `max_queued_batches` waiting, a batch is dropped and counted. Its
    sequence number is used up, so readers see a gap that no replay fills, and the next batch
    begins with AllBlocksCleared, so that readers that ignore gaps keep no block that is gone.

    A CURVE server has one key. When another fleet secret is the one that is sent, both sockets are
    bound anew with its key: readers lose their connection, try their other secrets, and ask for
    what they missed.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str = "",
        *,
        topic: str = "",
        fleet_secret: FleetSecretFile | None = None,
        buffer_batches: int = 10_000,
        buffer_bytes: int = 256 * 2**20,
        max_queued_batches: int = 10_000,
    ) -> None:
        """Bind the sockets and start the thread.

        Args:
            endpoint: PUB address, such as tcp://*:5557; port * takes a free one.
            replay_endpoint: ROUTER address; "" = no replay.
            topic: First frame of each message; other routers expect kv@<pod IP>@<model>.
            fleet_secret: Only holders of the one that is sent can subscribe; without any, anyone.
            buffer_batches: Batches kept for replay, at most `buffer_bytes` of payload.

        Raises:
            OSError: An address cannot be bound; the message names it.
        """
        self.dropped_batches = 0
        self._topic = topic.encode()
        self._queue: deque[tuple[int, float, list[KVEvent]]] = deque()
        self._max_queued = max_queued_batches
        self._next_number = 0
        self._lost = False
        self._closing = False
        self._recent = _ReplayBuffer(buffer_batches, buffer_bytes)
        self._context = zmq.Context()
        self._fleet_secret = fleet_secret or FleetSecretFile()
        self._sent = self._fleet_secret.now.sent
        self._buffer_batches = buffer_batches
        self._pub, self._router = self._sockets()
        try:
            self.endpoint = _bind(self._pub, endpoint)
            self.replay_endpoint = _bind(self._router, replay_endpoint) if replay_endpoint else ""
        except OSError:
            self._context.destroy(linger=0)
            raise
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: list[KVEvent]) -> None:
        """Hand over one step's events; the list belongs to the publisher from now on."""
        if not events or self._closing:
            return
        number = self._next_number
        self._next_number += 1
        if len(self._queue) >= self._max_queued:
            self.dropped_batches += 1
            self._lost = True
            return
        if self._lost:
            self._lost = False
            events = [AllBlocksCleared(), *events]
        self._queue.append((number, time.time(), events))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Publish what waits and end the thread."""
        if self._closing:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _sockets(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        pub = self._socket(zmq.PUB, self._buffer_batches)
        router = self._socket(zmq.ROUTER, 2 * self._buffer_batches)
        # A full or vanished reader raises instead of losing part of its replay silently
        router.router_mandatory = True
        return pub, router

    def _socket(self, kind: int, high_water_mark: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.sndhwm = high_water_mark
        socket.linger = _LINGER_MS
        secure_server(socket, self._sent)
        return socket

    def _run(self) -> None:
        wait = int(1e3 * LOOK_SECONDS) if self._fleet_secret.is_file else None
        poller = self._poller()
        while not (self._closing and not self._queue):
            ready = dict(poller.poll(wait))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._sent != self._fleet_secret.now.sent:
                self._bind_again()
                poller, ready = self._poller(), {}
            self._send_queued()
            if self._router in ready:
                self._answer_replay()
        self._context.destroy()

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        return poller

    def _bind_again(self) -> None:
        """Bind with the secret that is sent now. The replay's address first: who gets through to
        the other one asks there next."""
        self._sent = self._fleet_secret.now.sent
        _unbind(self._pub, self.endpoint)
        _unbind(self._router, self.replay_endpoint)
        self._pub, self._router = self._sockets()
        for socket, endpoint in ((self._router, self.replay_endpoint), (self._pub, self.endpoint)):
            while endpoint and not self._closing and not _is_bound(socket, endpoint):
                time.sleep(_BIND_AGAIN_SECONDS)
        _log.info("KV events are for holders of another fleet secret now.")

    def _send_queued(self) -> None:
        while self._queue:
            number, timestamp, events = self._queue.popleft()
            payload = encode_batch(EventBatch(timestamp, events, data_parallel_rank=0))
            frame = number.to_bytes(8, "big")
            self._pub.send_multipart([self._topic, frame, payload])
            self._recent.append(number, payload)

    def _answer_replay(self) -> None:
        """Send the buffered batches from the asked number on, then the end marker."""
        request = self._router.recv_multipart()
        if len(request) != 3 or request[1] or len(request[2]) != 8:
            _log.warning("a replay request is not [empty, 8-byte number]; it is ignored.")
            return
        reader, start = request[0], int.from_bytes(request[2], "big")
        try:
            for number, payload in self._recent.since(start):
                frame = number.to_bytes(8, "big")
                self._router.send_multipart([reader, b"", self._topic, frame, payload], zmq.NOBLOCK)
            self._router.send_multipart([reader, b"", b"", REPLAY_END, b""], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _log.warning("a replay from %d ended early: %s.", start, error)


class _ReplayBuffer:
    """The last batches, bounded in number and bytes."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._batches: deque[tuple[int, bytes]] = deque()
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._bytes = 0

    def append(self, number: int, payload: bytes) -> None:
        self._batches.append((number, payload))
        self._bytes += len(payload)
        while len(self._batches) > self._max_batches or self._bytes > self._max_bytes:
            self._bytes -= len(self._batches.popleft()[1])

    def since(self, number: int) -> Iterator[tuple[int, bytes]]:
        return ((n, payload) for n, payload in self._batches if n >= number)


def _bind(socket: zmq.Socket[Any], endpoint: str) -> str:
    """Bind and return the address, with the port that a wildcard got."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(
            error.errno,
            f"KV events cannot be published on {endpoint}: {error.strerror}; "
            "choose another address with --kv-events-endpoint or --kv-events-replay-endpoint.",
        ) from error
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.decode() if isinstance(bound, bytes) else endpoint


def _unbind(socket: zmq.Socket[Any], endpoint: str) -> None:
    """Close the socket, once nothing listens at its address any more."""
    if endpoint:
        monitor = socket.get_monitor_socket(zmq.EVENT_CLOSED)
        socket.unbind(endpoint)
        monitor.poll(_UNBIND_MS)
        socket.disable_monitor()
        monitor.close()
    socket.close()


def _is_bound(socket: zmq.Socket[Any], endpoint: str) -> bool:
    try:
        _bind(socket, endpoint)
    except OSError as error:
        _log.warning("%s; trying again.", error)
        return False
    return True
