"""Block events of the pools, recorded as they go on the wire."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvasir.wire.block_hash import root_hash
from kvasir.wire.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
)
from kvasir_engine.kv.groups import KVGroupSpec


class EventRecorder:
    """Record of what the block pools of all groups report, in order, until `drain_events`."""

    def __init__(self, prefix_seed: bytes = b"") -> None:
        self._events: list[KVEvent] = []
        self._root = root_hash(prefix_seed)

    def listeners(self, groups: Sequence[KVGroupSpec]) -> list[GroupListener]:
        """Return the listener to give to the pool of each group."""
        return [GroupListener(self._events, self._root, *group) for group in enumerate(groups)]

    def drain_events(self) -> list[KVEvent]:
        """Return and clear the recorded events."""
        events = self._events.copy()
        self._events.clear()
        return events


class GroupListener:
    """A pool's `BlockListener`; joins events of the same kind that follow each other."""

    def __init__(self, events: list[KVEvent], root: bytes, group: int, spec: KVGroupSpec) -> None:
        self._events = events
        self._root = root
        self._group = group
        self._spec = spec
        self._kind = "full_attention" if spec.window is None else "sliding_window"

    def stored(self, hash_: bytes, parent: bytes, token_bytes: bytes) -> None:
        """Record a findable block. A salted sequence's first block keeps its root as its parent, so
        that no reader takes it for the start of an unsalted one."""
        tokens = array("i", token_bytes)
        last = self._events[-1] if self._events else None
        if (
            isinstance(last, BlockStored)
            and last.group_idx == self._group
            and last.block_hashes[-1] == parent
        ):
            last.block_hashes.append(hash_)
            last.token_ids.extend(tokens)
            return
        event = BlockStored(
            block_hashes=[hash_],
            parent_block_hash=None if parent == self._root else parent,
            token_ids=tokens.tolist(),
            block_size=self._spec.block_size,
            medium=MEDIUM_GPU,
            group_idx=self._group,
            kv_cache_spec_kind=self._kind,
            kv_cache_spec_sliding_window=self._spec.window,
            kv_cache_dtype=self._spec.dtype or None,
        )
        self._events.append(event)

    def removed(self, hash_: bytes) -> None:
        """Record that a block is gone."""
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved) and last.group_idx == self._group:
            last.block_hashes.append(hash_)
        else:
            self._events.append(BlockRemoved([hash_], MEDIUM_GPU, self._group))

    def cleared(self) -> None:
        """Record that all blocks are gone. Every group reports it; one event says it."""
        if not (self._events and isinstance(self._events[-1], AllBlocksCleared)):
            self._events.append(AllBlocksCleared())
