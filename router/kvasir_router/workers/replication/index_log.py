"""Logs of a `ModelIndex`, which tell less than engines do: only what a look-up by text needs."""

import time
from collections.abc import Iterable, Iterator, Sequence

from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.workers.replication.messages import (
    BLOCKS_PER_MESSAGE,
    Cleared,
    Dropped,
    Held,
    Learned,
    Message,
    Remembered,
    Routed,
    ToWorker,
    pack_keys,
    unpack_keys,
)
from kvasir_router.workers.replication.model_log import ModelLog, Tell, slot_of
from kvasir_router.workers.shared_memory.shared_replica import SharedReplica

_REPORT_INTERVAL_SECONDS = 10.0
_MAX_REPORTED = 65_536


class IndexLog(ModelLog):
    """Log of a model's index: applies what other processes tell, and tells of new texts."""

    def __init__(self, model: str, index: ModelIndex, tell: Tell) -> None:
        super().__init__(model, index, index.texts, tell)
        self.index = index
        index.when_learned = self.tell_report

    def apply(self, message: Message, replica: SharedReplica | None) -> None:
        """ModelLog.apply."""
        index = self.index
        if isinstance(message, Learned):
            index.texts.learn(message.report)
        elif replica is None:
            return
        elif isinstance(message, Routed):
            chain, capacity = message.texts, replica.load.kv_capacity
            index.approximate.routed(chain, replica, message.known, capacity)
            index.texts.used(chain)
        elif isinstance(message, Held):
            keys = unpack_keys(message.keys)
            index.residency.hold(replica, message.group, message.tier, message.block_size, keys)
        elif isinstance(message, Dropped):
            keys = unpack_keys(message.keys)
            index.residency.drop(replica, message.group, message.tier, keys)
        elif isinstance(message, Cleared):
            index.residency.cleared(replica)
        elif isinstance(message, Remembered):
            index.approximate.restore(replica, message.contents)

    def contents(self, replicas: Iterable[SharedReplica]) -> Iterator[list[ToWorker]]:
        """ModelLog.contents."""
        index, known = self.index, list(replicas)
        for replica in known:
            contents = index.approximate.contents(replica)
            if contents:
                yield [Remembered(replica.slot, contents)]
        for replica in known:
            if index.residency.knows(replica):
                yield [Cleared(replica.slot)]
        for message in self.texts():
            yield [message, *self._held(filter(None, unpack_keys(message.report.kv_hashes)))]

    def begin_replica(self, replica: SharedReplica) -> None:
        """ModelLog.begin_replica."""
        self.index.residency.forget_replica(replica)

    def _held(self, keys: Iterable[int]) -> Iterator[Held]:
        """Return those of these blocks that are in replicas' caches, as messages."""
        residency = self.index.residency
        for (replica, group, tier), held in residency.holders(keys).items():
            yield Held(slot_of(replica), group, tier, residency.block_size, pack_keys(held))


class PublishedIndexLog(IndexLog):
    """Log in the index process: a BlockLog that tells of no more blocks than texts lead to.

    A worker finds blocks by text alone, and each text block leads to one KV block: the last one
    before its end. So one block in eight matters, or in thirty-two far from a prompt's beginning;
    which ones, prompt reports say.
    """

    def __init__(self, model: str, index: ModelIndex, tell: Tell) -> None:
        super().__init__(model, index, tell)
        self._ends = self._text_ends()
        self._begun: set[CachedReplica] = set()
        """Replicas that are known to have events."""
        index.residency.journal = self
        index.when_learned = self._learned

    def held(
        self, replica: CachedReplica, group: int, tier: str, block_size: int, keys: Sequence[int]
    ) -> None:
        """BlockLog.held."""
        slot = slot_of(replica)
        if replica not in self._begun:
            self.cleared(replica)
        for part in _parts(self._ends_of(keys)):
            self._tell(Held(slot, group, tier, block_size, pack_keys(part)), len(part))

    def dropped(self, replica: CachedReplica, group: int, tier: str, keys: Sequence[int]) -> None:
        """BlockLog.dropped."""
        slot = slot_of(replica)
        for part in _parts(self._ends_of(keys)):
            self._tell(Dropped(slot, group, tier, pack_keys(part)), len(part))

    def cleared(self, replica: CachedReplica) -> None:
        """BlockLog.cleared."""
        self._begun.add(replica)
        self._tell(Cleared(slot_of(replica)))

    def forget_replica(self, replica: CachedReplica) -> None:
        """ModelLog.forget_replica."""
        self._begun.discard(replica)

    def _ends_of(self, keys: Sequence[int]) -> list[int]:
        ends = self._ends
        return [key for key in keys if key in ends]

    def _learned(self, report: PromptReport) -> None:
        self.tell_report(report)
        new = [key for key in unpack_keys(report.kv_hashes) if key and key not in self._ends]
        if not new:
            return
        self._ends.update(new)
        residency = self.index.residency
        for (replica, group, tier), keys in residency.holders(new).items():
            self.held(replica, group, tier, residency.block_size, keys)
        if len(self._ends) > 2 * self.index.texts.max_blocks:
            self._ends = self._text_ends()

    def _text_ends(self) -> set[int]:
        """Return the KV blocks that texts lead to."""
        return {int.from_bytes(key, "little") for _, _, key in self.index.texts.contents()} - {0}


class WorkerIndexLog(IndexLog):
    """Log in a worker, which tells of prompts that it sent."""

    def __init__(self, model: str, index: ModelIndex, tell: Tell, column: int) -> None:
        super().__init__(model, index, tell)
        self._column = column
        self._told: dict[tuple[int, int], float] = {}
        """When the others were told of texts at replicas (slot, last block), by the clock."""
        index.when_routed = self._routed

    def _routed(self, chain: Sequence[int], replica: CachedReplica, known: int) -> None:
        """Tell the others, if that is news to them: of a text that is known to be there as a whole
        only now and then, so that it stays young in their lists too."""
        slot = slot_of(replica)
        if known >= len(chain):
            now, text = time.monotonic(), (slot, chain[-1])
            if now - self._told.get(text, 0.0) < _REPORT_INTERVAL_SECONDS:
                return
            if len(self._told) >= _MAX_REPORTED:
                self._told.clear()
            self._told[text] = now
        self._tell(Routed(self._column, slot, chain, known))


def _parts(keys: Sequence[int]) -> list[Sequence[int]]:
    """Return the keys in parts no longer than one message's."""
    return [keys[at : at + BLOCKS_PER_MESSAGE] for at in range(0, len(keys), BLOCKS_PER_MESSAGE)]
