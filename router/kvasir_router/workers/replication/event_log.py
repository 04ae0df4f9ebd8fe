"""What the index process sees, passed on to the workers as it happens."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, LoadStreamState
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.index.text_map import MAX_BLOCKS as TEXT_BLOCKS
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.workers.replication.messages import (
    BLOCKS_PER_MESSAGE,
    Cleared,
    Dropped,
    Heard,
    Held,
    Learned,
    Loaded,
    Observed,
    ToWorker,
    pack_keys,
    pack_texts,
    unpack_keys,
    unpack_texts,
)
from kvasir_router.workers.replication.publisher import Publisher
from kvasir_router.workers.shared_memory.shared_replica import SharedReplica


class WatchedReplica(SharedReplica):
    """The index process's replica: what is seen of it is news."""

    journal: "EventLog"
    model: Model

    def observed(self, health: Health) -> None:
        """Replica.observed."""
        super().observed(health)
        self.journal.tell(observed(self, health))

    def heard(self, load_stream_state: LoadStreamState) -> None:
        """Replica.heard."""
        changed = load_stream_state is not self.load_stream_state
        super().heard(load_stream_state)
        if changed:
            self.journal.tell(Heard(self.slot, load_stream_state))

    def _load_heard(self, report: LoadReport) -> None:
        super()._load_heard(report)
        self.journal.tell(loaded(self, report))


class EventLog:
    """Tells of the replicas, and of every model's index."""

    def __init__(self, hub: Publisher) -> None:
        self.tell = hub.tell
        self._indexes: dict[str, IndexEventLog] = {}

    def follow(self, model: Model) -> None:
        """Pass on what comes to the model's index, if its policy has one."""
        policy, known = model.policy, self._indexes.get(model.name)
        if not isinstance(policy, KvAware):
            self._indexes.pop(model.name, None)
        elif known is None or known.index is not policy.index:
            self._indexes[model.name] = IndexEventLog(model.name, policy.index, self.tell)

    def keep(self, models: Collection[str]) -> None:
        """All others are gone."""
        for name in self._indexes.keys() - set(models):
            del self._indexes[name]

    def index(self, model: str) -> "IndexEventLog | None":
        """Of a model whose policy has one."""
        return self._indexes.get(model)


class IndexEventLog:
    """A BlockLog that tells of no more blocks than texts lead to.

    A worker finds blocks by text alone, and each text block leads to one KV block: the last one
    before its end. So one block in eight matters, or in thirty-two far from a prompt's beginning;
    which ones, prompt reports say.
    """

    def __init__(self, model: str, index: ModelIndex, tell: Callable[..., None]) -> None:
        self.index = index
        self._model = model
        self._tell = tell
        self._ends = _ends(index)
        self._begun: set[CachedReplica] = set()
        """Those that are known to have events."""
        index.residency.journal = self
        index.when_learned = self._learned

    def held(
        self, replica: CachedReplica, group: int, tier: str, block_size: int, keys: Sequence[int]
    ) -> None:
        """BlockLog.held."""
        slot = slot_of(replica)
        if replica not in self._begun:
            self.cleared(replica)
        for part in parts(self.ends_of(keys)):
            self._tell(Held(slot, group, tier, block_size, pack_keys(part)), len(part))

    def dropped(self, replica: CachedReplica, group: int, tier: str, keys: Sequence[int]) -> None:
        """BlockLog.dropped."""
        slot = slot_of(replica)
        for part in parts(self.ends_of(keys)):
            self._tell(Dropped(slot, group, tier, pack_keys(part)), len(part))

    def cleared(self, replica: CachedReplica) -> None:
        """BlockLog.cleared."""
        self._begun.add(replica)
        self._tell(Cleared(slot_of(replica)))

    def ends_of(self, keys: Sequence[int]) -> list[int]:
        """Those that a text leads to."""
        ends = self._ends
        return [key for key in keys if key in ends]

    def forget(self, replica: CachedReplica) -> None:
        """It is gone."""
        self._begun.discard(replica)

    def _learned(self, report: PromptReport) -> None:
        self._tell(learned(self._model, report), len(report.text_hashes))
        new = [key for key in unpack_keys(report.kv_hashes) if key and key not in self._ends]
        if not new:
            return
        self._ends.update(new)
        residency = self.index.residency
        for (replica, group, tier), keys in residency.holders(new).items():
            self.held(replica, group, tier, residency.block_size, keys)
        if len(self._ends) > 2 * TEXT_BLOCKS:
            self._ends = {
                int.from_bytes(key, "little") for _, _, key in self.index.texts.contents()
            }


def _ends(index: ModelIndex) -> set[int]:
    """The KV blocks that texts lead to."""
    return {int.from_bytes(key, "little") for _, _, key in index.texts.contents()} - {0}


def slot_of(replica: CachedReplica) -> int:
    """All replicas of a router with workers have one."""
    assert isinstance(replica, SharedReplica)  # noqa: S101 - the fleet makes no others
    return replica.slot


def parts(keys: Sequence[int]) -> list[Sequence[int]]:
    """No longer than one message's."""
    return [keys[at : at + BLOCKS_PER_MESSAGE] for at in range(0, len(keys), BLOCKS_PER_MESSAGE)]


def observed(replica: SharedReplica, health: Health) -> ToWorker:
    """A probe's verdict as a message."""
    return Observed(replica.slot, health, replica.max_model_len, replica.serves)


def loaded(replica: SharedReplica, report: LoadReport) -> ToWorker:
    """A report of load as a message."""
    load = replica.load
    return Loaded(replica.slot, report, load.report_every, load.kv_capacity)


def learned(model: str, report: PromptReport) -> Learned:
    """A prompt report as a message."""
    return Learned(model, pack_texts(report.text_hashes), list(report.kv_blocks), report.kv_hashes)


def texts_of(model: str, index: ModelIndex) -> Iterator[Learned]:
    """All texts that an index knows, as messages."""
    contents = index.texts.contents()
    while part := list(islice(contents, BLOCKS_PER_MESSAGE)):
        texts, blocks, keys = zip(*part, strict=True)
        yield Learned(model, pack_texts(texts), list(blocks), b"".join(keys))


def report_of(message: Learned) -> PromptReport:
    """What `learned` made a message of."""
    return PromptReport(unpack_texts(message.texts), message.kv_blocks, message.kv_hashes)
