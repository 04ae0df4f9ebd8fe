"""Recorded events reach subscribers as vLLM's published structs, complete and in order."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from support.engines.block_events import Connect, removed, replay, subscribe

from kvasir.wire import kv_events
from kvasir.wire.block_hash import HASH_BYTES, chain_hashes, root_hash
from kvasir_engine.kv import event_publisher
from kvasir_engine.kv.event_publisher import KVEventPublisher
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.kv.manager import KVManager

BLOCK = 4
GROUPS = (KVGroupSpec((0,), BLOCK, dtype="fp8"), KVGroupSpec((1,), BLOCK, window=8, dtype="fp8"))
"""What vLLM's readers do not know stands behind what they do."""


class VllmEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """vLLM's KVCacheEvent."""


class BlockStored(VllmEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(VllmEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(VllmEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(KVEventBatch).decode


def next_batch(socket: zmq.Socket[bytes]) -> tuple[int, KVEventBatch]:
    assert socket.poll(5000)
    topic, number, payload = socket.recv_multipart()
    assert topic == b"kv@a@m"
    return int.from_bytes(number, "big"), decode(payload)


def settled(source: KVEventPublisher) -> None:
    """Wait until what was published is also in the replay buffer."""
    while source._queue:
        time.sleep(0.001)


def commit(manager: KVManager, tokens: list[int], salt: str = "") -> None:
    tables = manager.new_tables(salt)
    array = np.array(tokens, np.int32)
    manager.append(tables, manager.blocks_needed(tables, len(tokens)))
    manager.commit(tables, array, len(tokens))
    manager.release(tables.tables)


def test_what_the_pools_do_is_announced_with_fresh_hashes(
    connect: Connect, publisher: Callable[..., KVEventPublisher]
) -> None:
    recorder = EventRecorder()
    manager = KVManager(GROUPS, [9, 9], listeners=recorder.listeners(GROUPS))
    source = publisher()
    socket, _ = subscribe(connect, source)
    tokens = list(range(100, 100 + 3 * BLOCK))
    commit(manager, tokens)
    source.publish(recorder.drain_events())

    _, batch = next_batch(socket)
    while any(isinstance(event, AllBlocksCleared) for event in batch.events):
        _, batch = next_batch(socket)
    hashes = chain_hashes(tokens, BLOCK)
    fresh = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    by_group: dict[int | None, list[BlockStored]] = {}
    for event in batch.events:
        assert isinstance(event, BlockStored)
        by_group.setdefault(event.group_idx, []).append(event)
    for group, events in by_group.items():
        assert [h for event in events for h in event.block_hashes] == fresh
        assert [t for event in events for t in event.token_ids] == tokens
        assert events[0].parent_block_hash is None
        assert {e.kv_cache_spec_sliding_window for e in events} == {GROUPS[group or 0].window}
        assert {(e.block_size, e.medium, e.lora_name) for e in events} == {(BLOCK, "GPU", None)}
    assert set(by_group) == {0, 1}
    assert batch.data_parallel_rank == 0


def test_a_chain_is_one_event_and_a_salted_one_keeps_its_root() -> None:
    recorder = EventRecorder()
    manager = KVManager(GROUPS[:1], [9], listeners=recorder.listeners(GROUPS[:1]))
    commit(manager, list(range(3 * BLOCK)))
    commit(manager, list(range(BLOCK)), salt="tenant")
    [plain, salted] = recorder.drain_events()
    assert isinstance(plain, kv_events.BlockStored)
    assert isinstance(salted, kv_events.BlockStored)
    assert (len(plain.block_hashes), plain.parent_block_hash) == (3, None)
    assert salted.parent_block_hash == root_hash(cache_salt="tenant")
    assert recorder.drain_events() == []


@pytest.mark.parametrize(("dtype", "told"), [("fp8", "fp8"), ("", None)])
def test_events_say_what_keys_and_values_are_stored_in(dtype: str, told: str | None) -> None:
    group = KVGroupSpec((0,), BLOCK, dtype=dtype)
    recorder = EventRecorder()
    commit(KVManager([group], [9], listeners=recorder.listeners([group])), list(range(BLOCK)))
    batch = kv_events.EventBatch(1.0, recorder.drain_events())
    [event] = kv_events.decode_batch(kv_events.encode_batch(batch)).events
    assert isinstance(event, kv_events.BlockStored)
    assert event.kv_cache_dtype == told


def test_a_seed_changes_the_hashes_and_nothing_else() -> None:
    recorder = EventRecorder(b"seed")
    manager = KVManager(
        GROUPS[:1], [9], prefix_seed=b"seed", listeners=recorder.listeners(GROUPS[:1])
    )
    commit(manager, list(range(2 * BLOCK)))
    [event] = recorder.drain_events()
    assert isinstance(event, kv_events.BlockStored)
    assert event.parent_block_hash is None
    hashes = chain_hashes(range(2 * BLOCK), BLOCK, root=root_hash(b"seed"))
    assert event.block_hashes == [hashes[:HASH_BYTES], hashes[HASH_BYTES:]]


def test_evictions_and_a_reset_are_recorded() -> None:
    recorder = EventRecorder()
    manager = KVManager(GROUPS[:1], [4], listeners=recorder.listeners(GROUPS[:1]))
    commit(manager, list(range(3 * BLOCK)))
    [stored] = recorder.drain_events()
    commit(manager, list(range(50, 50 + 2 * BLOCK)))
    gone, new = recorder.drain_events()
    manager.reset_cache()
    assert isinstance(stored, kv_events.BlockStored)
    assert isinstance(gone, kv_events.BlockRemoved)
    assert set(gone.block_hashes) <= set(stored.block_hashes)
    assert len(gone.block_hashes) == 2
    assert isinstance(new, kv_events.BlockStored)
    assert recorder.drain_events() == [kv_events.AllBlocksCleared()]


def test_late_reader_replays_everything_then_the_end(
    connect: Connect, publisher: Callable[..., KVEventPublisher]
) -> None:
    source = publisher()
    for number in range(20):
        source.publish(removed(number))
    settled(source)
    messages = replay(connect, source, 0)
    assert [int.from_bytes(m[2], "big") for m in messages[:-1]] == list(range(20))
    assert {(m[0], m[1]) for m in messages[:-1]} == {(b"", b"kv@a@m")}
    assert messages[-1] == [b"", b"", b"\xff" * 8, b""]
    [event] = decode(messages[7][3]).events
    assert event == BlockRemoved([(7).to_bytes(HASH_BYTES, "big")], "GPU", 0)


def test_a_gap_is_filled_from_the_next_number_on(
    connect: Connect, publisher: Callable[..., KVEventPublisher]
) -> None:
    source = publisher()
    for number in range(10):
        source.publish(removed(number))
    settled(source)
    numbers = [int.from_bytes(m[2], "big") for m in replay(connect, source, 6)[:-1]]
    assert numbers == [6, 7, 8, 9]
    assert len(replay(connect, source, 10)) == 1


def test_the_buffer_is_bounded_in_batches_and_in_bytes(
    connect: Connect, publisher: Callable[..., KVEventPublisher]
) -> None:
    few = publisher(buffer_batches=5)
    small = publisher(buffer_bytes=100)
    for number in range(12):
        few.publish(removed(number))
        small.publish(removed(number))
    settled(few)
    settled(small)
    assert [int.from_bytes(m[2], "big") for m in replay(connect, few, 0)[:-1]] == [7, 8, 9, 10, 11]
    kept = replay(connect, small, 0)[:-1]
    assert 0 < sum(len(m[3]) for m in kept) <= 100
    assert int.from_bytes(kept[-1][2], "big") == 11


def test_overflow_leaves_a_gap_and_then_clears(
    connect: Connect, publisher: Callable[..., KVEventPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = publisher(max_queued_batches=3)
    go_on = threading.Event()

    def encode_when_told(batch: kv_events.EventBatch) -> bytes:
        go_on.wait()
        return kv_events.encode_batch(batch)

    monkeypatch.setattr(event_publisher, "encode_batch", encode_when_told)
    source.publish(removed(0))
    settled(source)  # the thread holds batch 0; three more fit
    for number in range(1, 7):
        source.publish(removed(number))
    assert source.dropped_batches == 3
    go_on.set()
    settled(source)
    source.publish(removed(7))
    settled(source)

    messages = replay(connect, source, 0)[:-1]
    assert [int.from_bytes(m[2], "big") for m in messages] == [0, 1, 2, 3, 7]
    assert decode(messages[-1][3]).events == [
        AllBlocksCleared(),
        BlockRemoved([(7).to_bytes(HASH_BYTES, "big")], "GPU", 0),
    ]


def test_malformed_replay_requests_are_ignored(
    connect: Connect, publisher: Callable[..., KVEventPublisher], caplog: pytest.LogCaptureFixture
) -> None:
    source = publisher()
    source.publish(removed(1))
    socket = connect(zmq.DEALER, source.replay_endpoint)
    socket.send_multipart([b"", b"short"])
    socket.send_multipart([b"no delimiter"])
    settled(source)
    assert len(replay(connect, source, 0)) == 2
    assert not socket.poll(0)


def test_only_holders_of_the_fleet_secret_hear_anything(
    connect: Connect, publisher: Callable[..., KVEventPublisher]
) -> None:
    source = publisher(fleet_secret="right")
    wrong = connect(zmq.SUB, source.endpoint, "wrong")
    none = connect(zmq.SUB, source.endpoint)
    thief = connect(zmq.DEALER, source.replay_endpoint, "wrong")
    thief.send_multipart([b"", (0).to_bytes(8, "big")])
    right, _ = subscribe(connect, source, "right")
    source.publish(removed(1))
    assert right.poll(5000)
    assert not wrong.poll(300)
    assert not none.poll(0)
    assert not thief.poll(0)


def test_a_reader_with_the_secret_does_not_trust_an_open_publisher(
    connect: Connect, publisher: Callable[..., KVEventPublisher]
) -> None:
    impostor = publisher()
    reader = connect(zmq.SUB, impostor.endpoint, "right")
    plain, _ = subscribe(connect, impostor)
    impostor.publish(removed(1))
    assert plain.poll(5000)
    assert not reader.poll(200)


def test_an_address_in_use_is_named(publisher: Callable[..., KVEventPublisher]) -> None:
    taken = publisher().endpoint
    with pytest.raises(OSError, match=taken):
        KVEventPublisher(taken)


def test_close_publishes_what_waits_and_silences_the_rest(
    connect: Connect, publisher: Callable[..., KVEventPublisher]
) -> None:
    source = publisher()
    socket, _ = subscribe(connect, source)
    source.publish(removed(77))
    source.close()
    source.publish(removed(78))
    heard = []
    while socket.poll(200):
        heard.append(decode(socket.recv_multipart()[2]).events)
    assert heard[-1] == [BlockRemoved([(77).to_bytes(HASH_BYTES, "big")], "GPU", 0)]


def test_a_core_without_sockets_needs_neither_zmq_nor_events() -> None:
    code = (
        "import sys, kvasir_engine.core.build;"
        "sys.exit(bool({'zmq', 'kvasir.wire.kv_events'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
