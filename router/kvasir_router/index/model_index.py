"""All that is known of one model's KV caches, and the best guess made of it."""

import time
from collections.abc import Callable, Sequence

from kvasir.wire.kv_events import BlockRemoved, BlockStored
from kvasir.wire.text_chain import BLOCK_BYTES, BLOCK_ENDS, BLOCK_SIZES, MAX_BLOCKS
from kvasir_router.index.approximate import ApproximateIndex
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.hit_check import Hit, HitCheck, HitSource
from kvasir_router.index.residency import Residency, Resident
from kvasir_router.index.text_map import TextMap
from kvasir_router.options.policy_options import (
    MAX_RESIDENT_BLOCKS,
    MAX_SENT_BLOCKS,
    MAX_TEXT_BLOCKS,
)
from kvasir_router.wire.query import BYTES_PER_TOKEN
from kvasir_router.wire.usage import Usage

SPECULATIVE_SECONDS = 3.0
"""For so long after a choice, events need not have confirmed it."""
LOWER_TIER_CREDIT = 0.75
"""Part of a token's computing that it saves in a lower tier (CPU memory, disk)."""

_SMOOTHING = 0.02
"""Weight of a new request in the mean length of a token, once there were some."""
_CLAIMS_LITTLE = 1.25
"""Text that is so many times longer than the KV blocks that are reported for it has parts for which
none are."""
_UNKNOWN = Resident(0, 0, 0, refuted=False)


class ModelIndex:
    """Join the exact and the approximate index; take the feeds' news (BlockSink).

    For a replica with block events, the exact index says what it has of a text whose KV blocks are
    known. The approximate one is asked for the rest, unless a KV block before it is missing: for
    texts never reported, and for those parts of a text for which a report claims no KV blocks. What
    was sent to the replica within the last seconds counts although no event confirms it yet.
    A replica without events has the approximate index alone. Predictions that turn out wrong too
    often are not used (HitCheck).
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_resident_blocks: int = MAX_RESIDENT_BLOCKS,
        max_sent_blocks: int = MAX_SENT_BLOCKS,
        max_text_blocks: int = MAX_TEXT_BLOCKS,
    ) -> None:
        """The bounds are KvAwareOptions' of the same names."""
        self._clock = clock
        self.approximate = ApproximateIndex(max_sent_blocks, clock)
        self.residency = Residency(max_resident_blocks)
        self.texts = TextMap(max_text_blocks)
        self.check = HitCheck(clock)
        self.bytes_per_token = self.approximate.bytes_per_token = BYTES_PER_TOKEN
        """Bytes of prompts' text for each token, as usage says."""
        self._weight = 1.0
        """Weight of the next request in that."""
        self.when_routed: Callable[[Sequence[int], CachedReplica, int], None] | None = None
        """Told of each prompt that this process sent, as `routed` is."""
        self.when_learned: Callable[[PromptReport], None] | None = None
        """Told of each report that came first to this process."""

    # BlockSink

    def stored(self, replica: CachedReplica, event: BlockStored) -> None:
        self.residency.stored(replica, event)

    def removed(self, replica: CachedReplica, event: BlockRemoved) -> None:
        self.residency.removed(replica, event)

    def cleared(self, replica: CachedReplica) -> None:
        self.residency.cleared(replica)

    def learned(self, report: PromptReport) -> None:
        self.texts.learn(report)
        if self.when_learned is not None:
            self.when_learned(report)

    def reseed(self, seed: bytes) -> bool:
        """The seed of the fleet's hashes is this one. True if it was another one before: what is
        known of texts and of foreign engines' blocks is forgotten."""
        if seed == self.residency.seed:
            return False
        self.residency.reseed(seed)
        self.texts.clear()
        return True

    # Lookup

    def match(self, chain: Sequence[int]) -> dict[CachedReplica, Hit]:
        """Each replica that is believed to have a part of the prompt."""
        sent = self.approximate.match(chain)
        known = self.residency.match(self.texts, chain)
        check, ratio = self.check, self.bytes_per_token
        doubts = check.doubts
        hits = {}
        depth, hit = 0, None
        for replica, blocks in sent.items():
            if replica in known or (doubts and not check.believes(replica, HitSource.APPROXIMATE)):
                continue
            if hit is None or blocks != depth:
                depth, hit = blocks, Hit(blocks, BLOCK_ENDS[blocks] / ratio, HitSource.APPROXIMATE)
            hits[replica] = hit
        for replica, resident in known.items():
            joined = self._joined(replica, chain, resident, sent.get(replica, 0))
            if joined is not None:
                hits[replica] = joined
        return hits

    def routed(
        self, chain: Sequence[int], replica: CachedReplica, known: int, capacity_tokens: int = 0
    ) -> None:
        """The prompt was sent to the replica, which is believed to have `known` text blocks, and
        room for `capacity_tokens` in its KV cache (0 = it does not say)."""
        if chain:
            self.approximate.routed(chain, replica, known, capacity_tokens)
            self.texts.used(chain)
            if self.when_routed is not None:
                self.when_routed(chain, replica, known)

    def ended(self, replica: CachedReplica, hit: Hit | None, usage: Usage, text_bytes: int) -> None:
        """A request that was sent to the replica because of `hit` has ended."""
        if usage.prompt_tokens and text_bytes > BLOCK_BYTES:
            bytes_per_token = text_bytes / usage.prompt_tokens
            self.bytes_per_token += self._weight * (bytes_per_token - self.bytes_per_token)
            self._weight = max(_SMOOTHING, self._weight / (1.0 + self._weight))
            self.approximate.bytes_per_token = self.bytes_per_token
        if usage.cached_tokens is not None:
            self.check.observed(replica, hit, usage.cached_tokens)

    def forget_replica(self, replica: CachedReplica) -> None:
        """The replica went or restarted."""
        self.approximate.forget_replica(replica)
        self.residency.forget_replica(replica)
        self.check.forget_replica(replica)

    def _joined(
        self, replica: CachedReplica, chain: Sequence[int], resident: Resident, sent: int
    ) -> Hit | None:
        """The hit of a replica with events, of whose prompt a part is known."""
        believes = self.check.believes
        if not believes(replica, HitSource.EXACT):
            resident = _UNKNOWN
        depth = resident.text_blocks
        lower = resident.kv_blocks - resident.gpu_blocks
        tokens = (resident.gpu_blocks + LOWER_TIER_CREDIT * lower) * self.residency.block_size
        source = HitSource.APPROXIMATE
        if resident.refuted and sent > depth:
            since = self._clock() - SPECULATIVE_SECONDS
            recent = self.approximate.sent_since(chain, replica, depth, since)
            source = HitSource.SPECULATIVE if recent else source
            sent = recent or depth
        guess = BLOCK_ENDS[sent] / self.bytes_per_token
        a_block = BLOCK_SIZES[min(depth, MAX_BLOCKS - 1)] / self.bytes_per_token
        claims_little = guess > _CLAIMS_LITTLE * tokens + a_block
        if (sent > depth or claims_little) and believes(replica, source):
            return Hit(sent, max(tokens, guess), source)
        return Hit(depth, tokens, HitSource.EXACT) if tokens else None
