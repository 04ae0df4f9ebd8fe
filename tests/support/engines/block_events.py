"""Readers of an engine's block events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import zmq

from kvasir.wire import kv_events
from kvasir.wire.block_hash import HASH_BYTES
from kvasir_engine.kv.event_publisher import KVEventPublisher

Connect = Callable[..., zmq.Socket[bytes]]


def removed(number: int) -> list[kv_events.KVEvent]:
    return [kv_events.BlockRemoved([number.to_bytes(HASH_BYTES, "big")], "GPU", 0)]


def subscribe(
    connect: Connect, source: KVEventPublisher, secret: str = ""
) -> tuple[zmq.Socket[bytes], int]:
    """A subscriber that is known to be connected, and the number of the first batch it got."""
    socket = connect(zmq.SUB, source.endpoint, secret)
    for _ in range(500):
        source.publish([kv_events.AllBlocksCleared()])
        if socket.poll(10):
            return socket, int.from_bytes(socket.recv_multipart()[1], "big")
    pytest.fail("the subscriber never heard anything")


def replay(
    connect: Connect, source: KVEventPublisher, start: int, secret: str = ""
) -> list[list[bytes]]:
    socket = connect(zmq.DEALER, source.replay_endpoint, secret)
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    messages = []
    while socket.poll(5000):
        messages.append(socket.recv_multipart())
        if messages[-1][2] == b"\xff" * 8:
            return messages
    pytest.fail("the replay has no end marker")
