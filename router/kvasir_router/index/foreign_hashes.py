"""The KV blocks of other engines under the hashes that Kvasir engines give them.

An engine's hashes depend on its algorithm and seed, and mean nothing outside of it. So a block's
own hash is made anew from its token ids and its parent's own hash (kvasir.wire.block_hash), and the
engine's is kept beside it only to know the block again in later events.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from kvasir.wire.block_hash import HASH_BYTES, block_hash, root_hash
from kvasir.wire.kv_events import BlockHash, BlockStored
from kvasir_router.index.block_table import BlockTable

# Of an engine's hash, which only has to be unique within one engine: an int of this size takes 32
# bytes, a longer one 48.
_ENGINE_KEY = (1 << 60) - 1

_PERSON = b"kvasir.extra.v1"

_encode = msgspec.msgpack.encode


class UnknownBlocksError(Exception):
    """An event's blocks cannot be given their own hashes; `reason` is a word for the metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def own_key(block: BlockHash) -> int:
    """A Kvasir engine's hash as a number."""
    return int.from_bytes(block, "little") if isinstance(block, bytes) else block


class ForeignHashes:
    """One engine's hashes, each with the block's own hash as a number."""

    def __init__(self, max_blocks: int, seed: bytes = b"") -> None:
        """`seed` is that of the fleet's own hashes (kvasir.wire.block_hash)."""
        self.table = BlockTable(max_blocks)
        self._seed = seed

    def stored(self, event: BlockStored) -> list[int]:
        """The own hashes of an event's blocks. Raises UnknownBlocksError."""
        if not event.token_ids:
            # Blocks that go to another tier are told by hash alone
            return list(self.known(event.block_hashes))
        size = event.block_size
        if size <= 0 or len(event.token_ids) != size * len(event.block_hashes):
            raise UnknownBlocksError("malformed")
        try:
            tokens = array("i", event.token_ids).tobytes()
        except OverflowError:
            raise UnknownBlocksError("malformed") from None
        extras = _extras(event)
        parent = self._parent(event, extras)
        keys = []
        for at, engine_hash in enumerate(event.block_hashes):
            if extras[at]:
                parent = _with_extras(parent, extras[at])
            parent = block_hash(parent, tokens[4 * size * at : 4 * size * (at + 1)])
            key = int.from_bytes(parent, "little")
            self.table.put(_engine_key(engine_hash), key)
            keys.append(key)
        return keys

    def known(self, blocks: Iterable[BlockHash]) -> Iterator[int]:
        """The own hashes of those that were stored before."""
        get = self.table.get
        return filter(None, (get(_engine_key(block)) for block in blocks))

    def removed(self, blocks: Iterable[BlockHash], held: Callable[[int], int]) -> None:
        """Forget those blocks that are not `held` any more."""
        for block in blocks:
            engine_key = _engine_key(block)
            if not held(self.table.get(engine_key)):
                self.table.pop(engine_key)

    def _parent(self, event: BlockStored, extras: list[list[Any]]) -> bytes:
        """The own hash that the first block follows. Takes the salt out of `extras`."""
        if event.parent_block_hash is None:
            salt = ""
            if len(extras[0]) == 1 and isinstance(extras[0][0], str):
                salt = extras[0].pop()
            return root_hash(self._seed, cache_salt=salt, lora=_adapter(event))
        key = self.table.get(_engine_key(event.parent_block_hash))
        if not key:
            raise UnknownBlocksError("orphan")
        return key.to_bytes(HASH_BYTES, "little")


def _with_extras(parent: bytes, extras: list[Any]) -> bytes:
    content = parent + _encode(extras)
    return blake2b(content, digest_size=HASH_BYTES, person=_PERSON).digest()


def _engine_key(block: BlockHash) -> int:
    number = int.from_bytes(block[-8:], "little") if isinstance(block, bytes) else block
    return number & _ENGINE_KEY


def _adapter(event: BlockStored) -> str:
    if event.lora_name:
        return event.lora_name
    return "" if event.lora_id is None else str(event.lora_id)


def _extras(event: BlockStored) -> list[list[Any]]:
    """Return what besides tokens and adapter tells blocks apart: media; the first one's salt."""
    given = event.extra_keys or []
    extras: list[list[Any]] = [list(extra or ()) for extra in given[: len(event.block_hashes)]]
    extras += [[] for _ in range(len(event.block_hashes) - len(extras))]
    for extra in extras:
        # vLLM names the adapter here too, first
        if extra and extra[0] in (event.lora_name, event.lora_id):
            del extra[0]
    return extras
