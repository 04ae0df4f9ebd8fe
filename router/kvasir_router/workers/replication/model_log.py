"""Log of what a model's sink holds: told by the process that hears of it, applied by the others."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from kvasir.wire.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from kvasir_router.index.block_sink import BlockSink, PromptReport, apply_event, apply_report
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.text_map import TextMap
from kvasir_router.options.policy_options import MAX_TEXT_BLOCKS
from kvasir_router.workers.replication.messages import (
    BLOCKS_PER_MESSAGE,
    EngineEvent,
    Learned,
    Message,
    ToWorker,
)
from kvasir_router.workers.shared_memory.shared_replica import SharedReplica

Tell = Callable[..., None]
"""Called with a message for the other processes, and the number of blocks in it."""


class ModelLog:
    """Log of one sink, the same in the index process and the workers."""

    def __init__(self, model: str, sink: BlockSink, texts: TextMap, tell: Tell) -> None:
        self.sink = sink
        self.entry: BlockSink = sink
        """Receiver of what this process hears first."""
        self._model = model
        self._texts = texts
        self._tell = tell

    def apply(self, message: Message, replica: SharedReplica | None) -> None:
        """Apply a message of another process."""
        raise NotImplementedError

    def contents(self, replicas: Iterable[SharedReplica]) -> Iterator[list[ToWorker]]:
        """Tell one worker, in pieces, what the others know."""
        raise NotImplementedError

    def begin_replica(self, replica: SharedReplica) -> None:
        """Forget a replica's blocks: those that follow are all there are."""
        raise NotImplementedError

    def forget_replica(self, replica: CachedReplica) -> None:
        """Drop what the log keeps for a replica that is gone."""

    def texts(self) -> Iterator[Learned]:
        """Return all known texts as messages."""
        contents = self._texts.contents()
        while part := list(islice(contents, BLOCKS_PER_MESSAGE)):
            texts, blocks, keys = zip(*part, strict=True)
            report = PromptReport(texts, blocks, b"".join(keys))
            yield Learned(self._model, report, retold=True)

    def learned_by_worker(self, message: Learned) -> bool:
        """Take a worker's texts, unless they are known: all workers tell a new index process the
        same. Returns whether they were taken."""
        is_news = any(self._texts.at(text) == (0, 0) for text in message.report.text_hashes)
        if is_news:
            self.entry.learned(message.report)
        return is_news

    def tell_report(self, report: PromptReport) -> None:
        """Tell the others of a prompt."""
        self._tell(Learned(self._model, report), len(report.text_hashes))


class SinkLog(ModelLog):
    """Log of any sink, before which it stands as a BlockSink: events are told as they came.

    It keeps no blocks. For a worker that comes late it has the engines asked for a replay, which
    all workers hear after `cleared`. It keeps texts, of which the sink's attribute
    `max_text_blocks` says how many, where it has one.
    """

    def __init__(self, model: str, sink: BlockSink, tell: Tell, replay: Callable[[], None]) -> None:
        bound = getattr(sink, "max_text_blocks", MAX_TEXT_BLOCKS)
        super().__init__(model, sink, TextMap(bound), tell)
        self.entry = self
        self._replay = replay

    def stored(self, replica: CachedReplica, event: BlockStored) -> None:
        """BlockSink.stored."""
        self._log(replica, event)

    def removed(self, replica: CachedReplica, event: BlockRemoved) -> None:
        """BlockSink.removed."""
        self._log(replica, event)

    def cleared(self, replica: CachedReplica) -> None:
        """BlockSink.cleared."""
        self._log(replica, AllBlocksCleared())

    def learned(self, report: PromptReport) -> None:
        """BlockSink.learned."""
        self._texts.learn(report)
        apply_report(self.sink, report)
        self.tell_report(report)

    def apply(self, message: Message, replica: SharedReplica | None) -> None:
        """ModelLog.apply."""
        if isinstance(message, Learned):
            self._texts.learn(message.report)
            apply_report(self.sink, message.report)
        elif isinstance(message, EngineEvent) and replica is not None:
            apply_event(self.sink, replica, message.event)

    def contents(self, replicas: Iterable[SharedReplica]) -> Iterator[list[ToWorker]]:
        """ModelLog.contents."""
        for message in self.texts():
            yield [message]
        self._replay()

    def begin_replica(self, replica: SharedReplica) -> None:
        """ModelLog.begin_replica."""
        apply_event(self.sink, replica, AllBlocksCleared())

    def _log(self, replica: CachedReplica, event: KVEvent) -> None:
        apply_event(self.sink, replica, event)
        blocks = 0 if isinstance(event, AllBlocksCleared) else len(event.block_hashes)
        self._tell(EngineEvent(slot_of(replica), event), blocks)


def slot_of(replica: CachedReplica) -> int:
    """Return the slot, which all replicas of a router with workers have."""
    assert isinstance(replica, SharedReplica)  # noqa: S101 - the fleet makes no others
    return replica.slot
