"""Index of what replicas probably have in their KV caches, by what was sent to them."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from kvasir.wire.text_chain import BLOCK_BYTES, BLOCK_ENDS, BLOCK_SIZES, LEVELS
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.replica_bits import ReplicaBits
from kvasir_router.options.policy_options import MAX_SENT_BLOCKS

DEFAULT_CAPACITY_TOKENS = 500_000
"""KV cache of a replica that does not say how large it is, in tokens."""
BYTES_PER_BLOCK = 130
"""Bytes of memory for a replica's entry: its hash, and its places in two dictionaries."""

_SLACK = 32
"""A list may outgrow its room by this part of it before it is cut."""
_RENEWED_SECONDS = 1.0
"""A prompt that a replica has as a whole is moved to the end of its list at most so often."""
_EVICTED_PER_CALL = 256
_SWEPT_PER_CALL = 64


class _Sent(NamedTuple):
    at: float
    """By the clock."""
    size: int
    """Bytes of text in the block."""


class ApproximateIndex:
    """Text blocks sent to each replica, in an LRU list as long as the replica's KV cache.

    Of a chain the last block is the least recently used one, so a replica that has a block has all
    before it.
    """

    def __init__(
        self, max_blocks: int = MAX_SENT_BLOCKS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`max_blocks`: text blocks of all replicas of a model together."""
        self.max_blocks = max_blocks
        self._clock = clock
        self.bytes_per_token = 4.0
        """Bytes of text for each token that a KV cache holds."""
        self._bits = ReplicaBits()
        self._masks: dict[int, int] = {}
        self._lists: dict[CachedReplica, dict[int, _Sent]] = {}
        """For each replica: block -> when it was last sent there without being there already."""
        self._sizes: dict[CachedReplica, int] = {}
        """Bytes of text in a list's blocks."""
        self._renewed: set[tuple[int, int]] = set()
        """Bits, and the last blocks of whole prompts, that were moved to the end lately."""
        self._renewed_since = -_RENEWED_SECONDS
        self._retired: list[tuple[int, dict[int, _Sent]]] = []
        self.blocks = 0
        """Pairs of a replica and a block, with those not cleared yet."""

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        return self.blocks * BYTES_PER_BLOCK

    def size(self, replica: CachedReplica) -> int:
        """Bytes of text that the replica is believed to have."""
        return self._sizes.get(replica, 0)

    def match(self, chain: Sequence[int]) -> dict[CachedReplica, int]:
        """Leading blocks that each replica has; only those that have any. A bisection for each
        different number of them."""
        get = self._masks.get
        having = get(chain[0], 0) & self._bits.alive if chain else 0
        depths: dict[CachedReplica, int] = {}
        if not having:
            return depths
        low, length = 1, len(chain)
        while having:
            # The first block that not all of these have: the last ones are the likeliest
            depth, end = low, length
            mask = get(chain[length - 1], 0) & having
            if mask == having:
                depth = length
            while depth < end:
                middle = (depth + end) // 2
                if get(chain[middle], 0) & having == having:
                    depth = middle + 1
                else:
                    end = middle
            further = get(chain[depth], 0) & having if depth < length else 0
            for replica in self._bits.replicas(having ^ further):
                depths[replica] = depth
            having, low = further, depth + 1
        return depths

    def sent_since(
        self, chain: Sequence[int], replica: CachedReplica, start: int, since: float
    ) -> int:
        """Return the number of leading blocks that the replica got, those from `start` on after
        `since` (by the clock); 0 if block `start` was not."""
        sent = self._lists.get(replica)
        end = start
        while sent and end < len(chain) and (entry := sent.get(chain[end])) and entry.at > since:
            end += 1
        return end if end > start else 0

    def routed(
        self, chain: Sequence[int], replica: CachedReplica, known: int = 0, capacity_tokens: int = 0
    ) -> None:
        """The prompt was sent to the replica, which had the first `known` blocks already. As much
        text is remembered as fits into a KV cache of `capacity_tokens`; 0 = unknown."""
        bit = self._bits.bit_for(replica)
        entries = self._lists.get(replica)
        if entries is None:
            entries = self._lists[replica] = {}
            self._sizes[replica] = 0
        if self._retired:
            self._sweep()
        length = len(chain)
        listed = self._listed(chain, entries, known)
        if listed < length:
            self._add(chain, listed, bit)
            self._sizes[replica] += BLOCK_ENDS[length] - BLOCK_ENDS[listed]
        old = min(known, listed)
        if old == length and (not length or self._was_renewed(bit, chain[length - 1])):
            return
        if old < length:
            for block in chain[old:listed]:
                del entries[block]
            now = self._clock()
            sent = {size: _Sent(now, size) for _, size in LEVELS}
            for at in range(length - 1, old - 1, -1):
                entries[chain[at]] = sent[BLOCK_SIZES[at]]
        pop = entries.pop
        for block in chain[old - 1 :: -1] if old else ():
            entries[block] = pop(block)
        if listed < length:
            room = self._room(capacity_tokens)
            if self._sizes[replica] > room + room // _SLACK:
                self._evict(replica, bit, room, length + _EVICTED_PER_CALL)

    def _was_renewed(self, bit: int, last: int) -> bool:
        """Return whether the prompt was moved to the LRU end too recently to move it again.

        Its blocks stay where they are in their order, so that a replica that has a block has those
        before it."""
        now = self._clock()
        if now - self._renewed_since >= _RENEWED_SECONDS:
            self._renewed.clear()
            self._renewed_since = now
        if (bit, last) in self._renewed:
            return True
        self._renewed.add((bit, last))
        return False

    def contents(self, replica: CachedReplica) -> list[tuple[int, float, int]]:
        """The replica's list, the oldest first: block, when it was sent, its bytes of text."""
        sent = self._lists.get(replica, {})
        return [(block, entry.at, entry.size) for block, entry in sent.items()]

    def restore(self, replica: CachedReplica, contents: Iterable[tuple[int, float, int]]) -> None:
        """Begin the replica's list anew with these `contents`."""
        self.forget_replica(replica)
        bit = self._bits.bit_for(replica)
        entries = self._lists[replica] = {block: _Sent(at, size) for block, at, size in contents}
        for block in entries:
            self._masks[block] = self._masks.get(block, 0) | bit
        self.blocks += len(entries)
        self._sizes[replica] = sum(entry.size for entry in entries.values())

    def forget_replica(self, replica: CachedReplica) -> None:
        """The replica went or restarted. What it had is cleared with the calls that follow."""
        bit = self._bits.retire(replica)
        if bit:
            self._retired.append((bit, self._lists.pop(replica)))
            del self._sizes[replica]

    def check_integrity(self) -> None:
        """Raises AssertionError when masks and lists disagree. Slow."""
        found: dict[int, int] = {}
        lists = [(self._bits.bit(replica), blocks) for replica, blocks in self._lists.items()]
        for bit, blocks in (*lists, *self._retired):
            for block in blocks:
                found[block] = found.get(block, 0) | bit
        if found != self._masks:
            raise AssertionError("the masks are not those of the lists")
        if self.blocks != sum(len(blocks) for _, blocks in (*lists, *self._retired)):
            raise AssertionError("the number of blocks is not that of the lists")
        for replica, entries in self._lists.items():
            if self._sizes[replica] != sum(sent.size for sent in entries.values()):
                raise AssertionError("a list's size is not that of its entries")

    def _add(self, chain: Sequence[int], start: int, bit: int) -> None:
        """The blocks from `start` on are new in the list."""
        masks = self._masks
        for block in chain[start:]:
            masks[block] = masks.get(block, 0) | bit
        self.blocks += len(chain) - start

    def _listed(self, chain: Sequence[int], entries: dict[int, _Sent], known: int) -> int:
        """Return the number of leading blocks that are in the list; probably `known`."""
        low, high = 0, len(chain)
        if 0 < known <= high and chain[known - 1] in entries:
            low = known
            if low == high or chain[low] not in entries:
                return low
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in entries:
                low = middle + 1
            else:
                high = middle
        return low

    def _room(self, capacity_tokens: int) -> int:
        """Bytes of text that a replica may have in its list."""
        tokens = capacity_tokens or DEFAULT_CAPACITY_TOKENS
        most = self.max_blocks // len(self._lists) * BLOCK_BYTES
        return max(1, min(int(tokens * self.bytes_per_token), most))

    def _evict(self, replica: CachedReplica, bit: int, room: int, at_most: int) -> None:
        """Forget the oldest entries, some at once: the first entries of a dictionary are found by
        skipping all that were deleted before them."""
        size, entries, masks = self._sizes[replica], self._lists[replica], self._masks
        for block in list(islice(entries, at_most)):
            if size <= room:
                break
            size -= entries.pop(block).size
            self.blocks -= 1
            mask = masks[block] & ~bit
            if mask:
                masks[block] = mask
            else:
                del masks[block]
        self._sizes[replica] = size

    def _sweep(self) -> None:
        """Clear a few of the blocks of replicas that are gone."""
        bit, blocks = self._retired[-1]
        for _ in range(min(_SWEPT_PER_CALL, len(blocks))):
            self._clear(blocks.popitem()[0], bit)
        if not blocks:
            self._retired.pop()
            self._bits.freed(bit)

    def _clear(self, block: int, bit: int) -> None:
        mask = self._masks[block] & ~bit
        if mask:
            self._masks[block] = mask
        else:
            del self._masks[block]
        self.blocks -= 1
