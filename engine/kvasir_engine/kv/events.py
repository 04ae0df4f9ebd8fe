"""Block events as the core records them; event_publisher.py puts them on the wire."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from kvasir.wire.block_hash import root_hash


@dataclass(slots=True)
class StoredBlocks:
    """Chain of blocks that became findable. `parent` None = they start an unsalted sequence."""

    group: int
    hashes: list[bytes]
    parent: bytes | None
    token_ids: list[int]


@dataclass(slots=True)
class RemovedBlocks:
    """Blocks that were evicted or withdrawn."""

    group: int
    hashes: list[bytes]


@dataclass(slots=True)
class Cleared:
    """Loss of every block."""


KVEvent = StoredBlocks | RemovedBlocks | Cleared


class EventRecorder:
    """Record of what the block pools of all groups report, in order, until `drain_events`."""

    def __init__(self) -> None:
        self._events: list[KVEvent] = []

    def listener(self, group: int) -> GroupListener:
        """Return the listener to give to the pool of `group`."""
        return GroupListener(self._events, group)

    def drain_events(self) -> list[KVEvent]:
        """Return and clear the recorded events."""
        events = self._events.copy()
        self._events.clear()
        return events


class GroupListener:
    """A pool's `BlockListener`; joins events of the same kind that follow each other."""

    def __init__(self, events: list[KVEvent], group: int) -> None:
        self._events = events
        self._group = group
        self._root = root_hash()

    def stored(self, hash_: bytes, parent: bytes, token_bytes: bytes) -> None:
        """Record a findable block. A salted sequence's first block keeps its root as its parent, so
        that no reader takes it for the start of an unsalted one."""
        tokens = array("i", token_bytes)
        last = self._events[-1] if self._events else None
        if (
            isinstance(last, StoredBlocks)
            and last.group == self._group
            and last.hashes[-1] == parent
        ):
            last.hashes.append(hash_)
            last.token_ids.extend(tokens)
        else:
            known = None if parent == self._root else parent
            self._events.append(StoredBlocks(self._group, [hash_], known, tokens.tolist()))

    def removed(self, hash_: bytes) -> None:
        """Record that a block is gone."""
        last = self._events[-1] if self._events else None
        if isinstance(last, RemovedBlocks) and last.group == self._group:
            last.hashes.append(hash_)
        else:
            self._events.append(RemovedBlocks(self._group, [hash_]))

    def cleared(self) -> None:
        """Record that all blocks are gone. Every group reports it; one event says it."""
        if not (self._events and isinstance(self._events[-1], Cleared)):
            self._events.append(Cleared())
