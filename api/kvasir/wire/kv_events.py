"""KV block events on the wire: what engines publish and routers read.

The layout is vLLM's (`vllm/distributed/kv_events.py`): ZMQ frames [topic, sequence number (8 bytes,
big-endian), payload], the payload one MessagePack `EventBatch`. Kvasir writes tagged positional
arrays; `decode_batch` also reads tagged maps (newer vLLM and SGLang), integer hashes, shorter
arrays of older versions and longer ones of newer versions.
"""

from __future__ import annotations

from typing import Any

import msgspec

REPLAY_END = (-1).to_bytes(8, "big", signed=True)
"""The sequence number that ends a replay; its payload is empty."""
MEDIUM_GPU = "GPU"
MAX_PAYLOAD_BYTES = 64 * 2**20

BlockHash = bytes | int


class KVEventError(ValueError):
    """A payload or frame list is not a batch of KV events."""


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """Blocks became findable: a chain whose first block follows `parent_block_hash` (None = root).

    `token_ids` are those of all the blocks, `block_size` for each. `extra_keys` has an entry a
    block: what besides the tokens distinguishes it (salt, media), or None. `kv_cache_dtype`, the
    type of keys and values, is Kvasir's own: it stands behind all that vLLM has, and another engine
    may have anything there.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: Any = None
    ownership: Any = None
    session_id: Any = None
    kv_cache_dtype: Any = None


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """Blocks were evicted or withdrawn."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """Every block was forgotten at once."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Events of one engine step. `ts` is Unix time in seconds."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


_EVENT_TYPES: dict[str, type[KVEvent]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EventBatch)


def encode_batch(batch: EventBatch) -> bytes:
    """The payload frame."""
    return _encoder.encode(batch)


def decode_batch(payload: bytes) -> EventBatch:
    """The batch in a payload frame of any engine; events of unknown kinds are left out.

    Raises KVEventError.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise KVEventError(
            f"a KV event payload of {len(payload)} bytes exceeds the limit of {MAX_PAYLOAD_BYTES}."
        )
    try:
        return _decoder.decode(payload)
    except msgspec.ValidationError:
        return _decode_foreign(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KVEventError(f"a KV event payload is not MessagePack: {error}.") from error


def parse_frames(frames: list[bytes]) -> tuple[bytes, int, bytes]:
    """(topic, sequence number, payload) of a published or replayed message; -1 = end of replay.

    The empty delimiter of a replay reply is optional, and so is its topic (vLLM before its
    pull request 45177, and SGLang). Raises KVEventError.
    """
    if len(frames) == 4 and not frames[0]:
        frames = frames[1:]
    if len(frames) == 2:
        frames = [b"", *frames]
    if len(frames) != 3 or len(frames[1]) != 8:
        sizes = [len(frame) for frame in frames]
        raise KVEventError(f"frames of {sizes} bytes are not [topic, 8-byte number, payload].")
    topic, number, payload = frames
    return topic, int.from_bytes(number, "big", signed=True), payload


def _decode_foreign(payload: bytes) -> EventBatch:
    """Decode what the typed decoder refuses: maps, metadata in place of a field, unknown kinds."""
    try:
        raw = msgspec.msgpack.decode(payload)
        if isinstance(raw, dict):
            ts, raw_events = raw.get("ts"), raw.get("events")
            rank = raw.get("data_parallel_rank")
        elif isinstance(raw, list) and len(raw) >= 2:
            ts, raw_events, rank = raw[0], raw[1], raw[2] if len(raw) > 2 else None
        else:
            raise KVEventError("a KV event payload is neither an array nor a map.")
        if not isinstance(raw_events, list):
            raise KVEventError("a KV event batch has no list of events.")
        batch = msgspec.convert([ts, [], rank], EventBatch)
        batch.events = [event for event in map(_foreign_event, raw_events) if event is not None]
        return batch
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise KVEventError(f"a KV event batch has an unreadable field: {error}.") from error


def _foreign_event(raw: object) -> KVEvent | None:
    if isinstance(raw, dict):
        kind = _EVENT_TYPES.get(str(raw.get("type")))
        if kind is None:
            return None
        names = kind.__struct_fields__
        values = [raw.get(name) for name in names]
        metadata: object = raw
    elif isinstance(raw, list) and raw:
        kind = _EVENT_TYPES.get(str(raw[0]))
        if kind is None:
            return None
        values = list(raw[1:])
        # SGLang sends a map of metadata behind its seven array fields
        metadata = values[6] if len(values) > 6 else None
        if isinstance(metadata, dict):
            values = values[:6]
    else:
        raise KVEventError("a KV event is neither an array nor a map.")
    event = msgspec.convert([kind.__name__, *values], kind)
    if isinstance(event, BlockStored) and isinstance(metadata, dict):
        _add_salt(event, metadata.get("cache_salt"))
    return event


def _add_salt(event: BlockStored, salt: object) -> None:
    """Put SGLang's `cache_salt` where vLLM has it: in the root block's extra keys."""
    if salt and event.extra_keys is None and event.block_hashes:
        event.extra_keys = [[salt], *([None] * (len(event.block_hashes) - 1))]
