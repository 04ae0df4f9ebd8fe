"""Who keeps what the feeds bring of prompts and KV blocks."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvasir.wire.kv_events import BlockRemoved, BlockStored
from kvasir_router.index.cached_replica import CachedReplica


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
    have been missed comes `cleared`, and then what the engine still remembers.
    """

    def stored(self, replica: CachedReplica, event: BlockStored) -> None:
        """Blocks are in the replica's cache."""

    def removed(self, replica: CachedReplica, event: BlockRemoved) -> None:
        """Blocks have left it."""

    def cleared(self, replica: CachedReplica) -> None:
        """Nothing is known to be in it."""

    def learned(self, report: PromptReport) -> None:
        """What an engine of the model says of a prompt; it holds for every replica."""
