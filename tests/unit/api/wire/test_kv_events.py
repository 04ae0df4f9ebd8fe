"""The decoder against what each engine version writes, byte for byte as msgpack."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.wire.kv_events import (
    REPLAY_END,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEventError,
    decode_batch,
    encode_batch,
    parse_frames,
)

HASH = b"h" * 16
pack = msgspec.msgpack.encode


def decode_one(event: Any) -> Any:
    [decoded] = decode_batch(pack([1.5, [event]])).events
    return decoded


def test_round_trip() -> None:
    batch = EventBatch(
        2.5,
        [
            BlockStored([HASH], b"p" * 16, [1, 2], 2, group_idx=1, kv_cache_dtype="fp8"),
            BlockRemoved([HASH], "GPU", 1),
            AllBlocksCleared(),
        ],
        0,
    )
    assert decode_batch(encode_batch(batch)) == batch


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [7], None, [1, 2], 2, None],
        ["BlockStored", [7], None, [1, 2], 2, None, None],
        ["BlockStored", [7], None, [1, 2], 2, None, None, None, None, None, None, None],
        ["BlockStored", [7], None, [1, 2], 2, *[None] * 7, "LOCAL", "own", "s", {"a": 1}, 9],
        {
            "type": "BlockStored",
            "block_hashes": [7],
            "parent_block_hash": None,
            "token_ids": [1, 2],
            "block_size": 2,
            "lora_id": None,
            "medium": None,
            "lora_name": None,
        },
        {
            "type": "BlockStored",
            "block_hashes": [7],
            "parent_block_hash": None,
            "token_ids": [1, 2],
            "block_size": 2,
            "added_later": {"a": 1},
        },
    ],
    ids=["sglang", "older", "all", "newer", "map", "newer-map"],
)
def test_stored_in_every_shape(event: Any) -> None:
    vllms = 11
    expected = msgspec.structs.astuple(BlockStored([7], None, [1, 2], 2))
    assert msgspec.structs.astuple(decode_one(event))[:vllms] == expected[:vllms]


@pytest.mark.parametrize("hash_", [-(2**63), 2**64 - 1, 0, b"x" * 32])
def test_hashes_of_any_kind(hash_: int | bytes) -> None:
    assert decode_one(["BlockRemoved", [hash_]]) == BlockRemoved([hash_])
    assert decode_one({"type": "BlockRemoved", "block_hashes": [hash_], "medium": "CPU"}) == (
        BlockRemoved([hash_], "CPU")
    )


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [1, 2], None, [1, 2], 1, None, "GPU", {"cache_salt": "s"}],
        {
            "type": "BlockStored",
            "block_hashes": [1, 2],
            "parent_block_hash": None,
            "token_ids": [1, 2],
            "block_size": 1,
            "medium": "GPU",
            "cache_salt": "s",
        },
        ["BlockStored", [1, 2], None, [1, 2], 1, None, "GPU", None, [["s"], None]],
    ],
    ids=["sglang-array", "sglang-map", "vllm"],
)
def test_salt_is_in_the_first_blocks_extra_keys(event: Any) -> None:
    assert decode_one(event).extra_keys == [["s"], None]


def test_batch_as_map_and_mixed_shapes() -> None:
    payload = pack(
        {
            "ts": 3,
            "events": [{"type": "AllBlocksCleared"}, ["BlockRemoved", [1]], ["FromTheFuture", 1]],
            "data_parallel_rank": 2,
        }
    )
    assert decode_batch(payload) == EventBatch(3, [AllBlocksCleared(), BlockRemoved([1])], 2)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pack(5),
        pack([1.0]),
        pack([1.0, "events"]),
        pack([1.0, [5]]),
        pack([1.0, [["BlockStored", [1]]]]),
        pack([1.0, [{"type": "BlockRemoved", "block_hashes": "x"}]]),
        pack(["late", []]),
        b"\x91" * 5000,
    ],
)
def test_unreadable_payloads_raise(payload: bytes) -> None:
    with pytest.raises(KVEventError):
        decode_batch(payload)


@given(st.binary(max_size=200))
def test_noise_never_raises_anything_else(payload: bytes) -> None:
    with contextlib.suppress(KVEventError):
        decode_batch(payload)


SEQ = (9).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("frames", "parsed"),
    [
        ([b"t", SEQ, b"p"], (b"t", 9, b"p")),
        ([b"", b"t", SEQ, b"p"], (b"t", 9, b"p")),
        ([b"", SEQ, b"p"], (b"", 9, b"p")),
        ([SEQ, b"p"], (b"", 9, b"p")),
        ([b"", b"", REPLAY_END, b""], (b"", -1, b"")),
        ([b"", REPLAY_END, b""], (b"", -1, b"")),
    ],
    ids=["published", "replayed", "old-replay", "bare", "end", "old-end"],
)
def test_frames_of_every_layout(frames: list[bytes], parsed: tuple[bytes, int, bytes]) -> None:
    assert parse_frames(frames) == parsed


@pytest.mark.parametrize("frames", [[], [b"t"], [b"t", b"short", b"p"], [b"a"] * 5])
def test_other_frames_raise(frames: list[bytes]) -> None:
    with pytest.raises(KVEventError, match="frames"):
        parse_frames(frames)
