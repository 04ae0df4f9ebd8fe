"""Another fleet secret while events are published."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from support.engines.block_events import Connect, removed, replay, subscribe

from kvasir_engine.kv import event_publisher
from kvasir_engine.kv.event_publisher import KVEventPublisher


def heard(socket: zmq.Socket[bytes], number: int) -> list[int]:
    """The numbers of the batches that come, until that one has."""
    numbers: list[int] = []
    while not numbers or numbers[-1] != number:
        assert socket.poll(5000)
        numbers.append(int.from_bytes(socket.recv_multipart()[1], "big"))
    return numbers


def test_another_secret_in_front_binds_anew_and_loses_no_batch(
    connect: Connect, publisher: Callable[..., KVEventPublisher], tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    source = publisher(file=file)
    addresses = (source.endpoint, source.replay_endpoint)
    old, first = subscribe(connect, source, "old")
    file.write_text("old\nnew")
    while source._fleet_secret.now.accepted != ("old", "new"):
        time.sleep(0.01)
    source.publish(removed(1))
    last = source._next_number - 1
    assert heard(old, last) == list(range(first + 1, last + 1))  # nothing changes for readers

    file.write_text("new\nold")
    new, first = subscribe(connect, source, "new")
    assert (source.endpoint, source.replay_endpoint) == addresses
    while old.poll(0):  # what was published before
        assert int.from_bytes(old.recv_multipart()[1], "big") < first
    again = connect(zmq.SUB, source.endpoint, "old")
    thief = connect(zmq.DEALER, source.replay_endpoint, "old")
    thief.send_multipart([b"", (0).to_bytes(8, "big")])
    source.publish(removed(2))
    last = source._next_number - 1
    heard(new, last)
    assert not again.poll(300)
    assert not old.poll(0)
    assert not thief.poll(0)
    replayed = [int.from_bytes(it[2], "big") for it in replay(connect, source, 0, "new")[:-1]]
    assert replayed == list(range(last + 1))


def test_a_publisher_is_closed_while_another_has_its_address(
    connect: Connect,
    publisher: Callable[..., KVEventPublisher],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing does not wait for an address that does not come back."""
    file = tmp_path / "secret"
    file.write_text("old")
    source = publisher(file=file)
    tried = threading.Event()

    def refuse(*_: object) -> str:
        tried.set()
        raise OSError("taken")

    monkeypatch.setattr(event_publisher, "_bind", refuse)
    file.write_text("new\nold")
    assert tried.wait(30)
    source.close()
