"""Receiver of engines' events about KV blocks and prompts."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import structlog

from kvasir.wire.kv_events import BlockRemoved, BlockStored, KVEvent
from kvasir_router.index.cached_replica import CachedReplica

_log = structlog.get_logger("kvasir_router.policy")


class PromptReport(NamedTuple):
    """Text blocks of one prompt, and the KV blocks that each one's chain determines.

    For text block i: its chained hash (kvasir.wire.text_chain) in `text_hashes[i]`, the number of
    full KV blocks in `kv_blocks[i]`, and the hash of the last of them in `kv_hashes[16 * i : 16 * i
    + 16]` (zeros where there is none).
    """

    text_hashes: Sequence[int]
    kv_blocks: Sequence[int]
    kv_hashes: bytes


class BlockSink(Protocol):
    """One model's knowledge of blocks. No call may block; each is one event's work.

    A replica's events come in the order of its engine, without holes: after anything that may
    have been missed comes `cleared`, and then what the engine still remembers. In a router with
    workers the sink of each worker is told the same, and so is that of the index process.
    """

    def stored(self, replica: CachedReplica, event: BlockStored) -> None:
        """Blocks are in the replica's cache."""

    def removed(self, replica: CachedReplica, event: BlockRemoved) -> None:
        """Blocks have left the replica's cache."""

    def cleared(self, replica: CachedReplica) -> None:
        """Nothing is known to be in the replica's cache."""

    def learned(self, report: PromptReport) -> None:
        """An engine of the model reports a prompt; it holds for every replica, and may come
        again."""


def apply_event(sink: BlockSink, replica: CachedReplica, event: KVEvent) -> None:
    """Give a sink an engine's event. A defect in the sink is logged, and costs it the event."""
    try:
        if isinstance(event, BlockStored):
            sink.stored(replica, event)
        elif isinstance(event, BlockRemoved):
            sink.removed(replica, event)
        else:
            sink.cleared(replica)
    except Exception:
        _log.exception("the policy's sink raised", replica=replica.id, event=type(event).__name__)


def apply_report(sink: BlockSink, report: PromptReport) -> None:
    """Give a sink a prompt report. A defect in the sink is logged, and costs it the report."""
    try:
        sink.learned(report)
    except Exception:
        _log.exception("the policy's sink raised", event="PromptReport")
