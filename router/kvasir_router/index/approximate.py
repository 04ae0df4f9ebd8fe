"""What replicas probably have in their KV caches, by what was sent to them."""

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from kvasir.text_chain import BLOCK_BYTES
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.replica_bits import ReplicaBits
from kvasir_router.index.search import prefix_depths

DEFAULT_CAPACITY_TOKENS = 500_000
"""Of a replica that does not say how large its KV cache is."""
MAX_BLOCKS = 2_000_000
"""Text blocks of all replicas of a model together."""
BYTES_PER_BLOCK = 130
"""Of memory, for a replica's entry: its hash, and its places in two dictionaries."""

NEAR = 16
"""Blocks at the beginning of a chain that are kept one by one."""
STRIDE = 4
"""Behind them, one of so many."""

_SLACK = 32
"""A list may outgrow its room by this part of it before it is cut."""
_EVICTED_PER_CALL = 256
_SWEPT_PER_CALL = 64


class _Sent(NamedTuple):
    at: float
    """By the clock."""
    blocks: int
    """Text blocks that the entry stands for."""


def _kept(chain: Sequence[int]) -> Sequence[int]:
    if len(chain) < NEAR + STRIDE:
        return chain[:NEAR]
    return [*chain[:NEAR], *chain[NEAR + STRIDE - 1 :: STRIDE]]


def _blocks(entries: int) -> int:
    """Text blocks that so many leading entries stand for."""
    return entries if entries <= NEAR else NEAR + (entries - NEAR) * STRIDE


def _entries(blocks: int) -> int:
    """Leading entries that so many text blocks make."""
    return blocks if blocks <= NEAR else NEAR + (blocks - NEAR) // STRIDE


class ApproximateIndex:
    """Text blocks sent to each replica, in an LRU list as long as the replica's KV cache.

    Of a chain the first 16 blocks are kept, and every fourth one behind them: a long prompt is
    told to 2 KB, in a quarter of the work. Its last block is its least recently used one, so a
    replica that has a block has all before it, and a lookup is one bisection for each different
    length of hit.
    """

    def __init__(
        self, max_blocks: int = MAX_BLOCKS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_blocks = max_blocks
        self._clock = clock
        self._bits = ReplicaBits()
        self._masks: dict[int, int] = {}
        self._lists: dict[Replica, dict[int, _Sent]] = {}
        """For each replica: block -> when it was last sent there without being there already."""
        self._sizes: dict[Replica, int] = {}
        """Text blocks that a list stands for."""
        self._retired: list[tuple[int, dict[int, _Sent]]] = []
        self.blocks = 0
        """Pairs of a replica and a kept block, with those not cleared yet."""

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        return self.blocks * BYTES_PER_BLOCK

    def size(self, replica: Replica) -> int:
        """Text blocks that the replica is believed to have."""
        return self._sizes.get(replica, 0)

    def match(self, chain: Sequence[int]) -> dict[Replica, int]:
        """Leading blocks that each replica has; only those that have any."""
        get, alive = self._masks.get, self._bits.alive
        first = get(chain[0], 0) & alive if chain else 0
        if not first:
            return {}
        kept = _kept(chain)
        depths = {}
        for bits, depth in prefix_depths(lambda at: get(kept[at], 0), 0, len(kept), first):
            for replica in self._bits.replicas(bits):
                depths[replica] = _blocks(depth)
        return depths

    def sent_since(self, chain: Sequence[int], replica: Replica, start: int, since: float) -> int:
        """How many leading blocks the replica got of which those from `start` on were sent after
        `since` (by the clock); 0 if block `start` was not."""
        sent = self._lists.get(replica)
        kept = _kept(chain)
        end = first = _entries(start)
        while sent and end < len(kept) and (entry := sent.get(kept[end])) and entry.at > since:
            end += 1
        return _blocks(end) if end > first else 0

    def routed(
        self, chain: Sequence[int], replica: Replica, known: int = 0, capacity_tokens: int = 0
    ) -> None:
        """The prompt was sent to the replica, which had the first `known` blocks already. As much
        text is remembered as fits into a KV cache of `capacity_tokens`; 0 = unknown."""
        bit = self._bits.take(replica)
        entries = self._lists.get(replica)
        if entries is None:
            entries = self._lists[replica] = {}
            self._sizes[replica] = 0
        self._sweep()
        kept = _kept(chain)
        listed = self._listed(kept, entries)
        old = min(_entries(known), listed)
        for block in kept[old:listed]:
            del entries[block]
        now = self._clock()
        near, far = _Sent(now, 1), _Sent(now, STRIDE)
        for at in range(len(kept) - 1, old - 1, -1):
            entries[kept[at]] = near if at < NEAR else far
        for at in range(old - 1, -1, -1):
            block = kept[at]
            entries[block] = entries.pop(block)
        masks = self._masks
        for block in kept[listed:]:
            masks[block] = masks.get(block, 0) | bit
        self.blocks += len(kept) - listed
        self._sizes[replica] += _blocks(len(kept)) - _blocks(listed)
        room = self._room(capacity_tokens)
        if self._sizes[replica] > room + room // _SLACK:
            self._evict(replica, bit, room, len(kept) + _EVICTED_PER_CALL)

    def forget(self, replica: Replica) -> None:
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
            if self._sizes[replica] != sum(sent.blocks for sent in entries.values()):
                raise AssertionError("a list's size is not that of its entries")

    def _listed(self, kept: Sequence[int], entries: dict[int, _Sent]) -> int:
        """How many leading blocks are in the list."""
        low, high = 0, len(kept)
        while low < high:
            middle = (low + high) // 2
            if kept[middle] in entries:
                low = middle + 1
            else:
                high = middle
        return low

    def _room(self, capacity_tokens: int) -> int:
        """Blocks that a replica may have in its list."""
        tokens = capacity_tokens or DEFAULT_CAPACITY_TOKENS
        return max(1, min(tokens * 4 // BLOCK_BYTES, self._max_blocks // len(self._lists)))

    def _evict(self, replica: Replica, bit: int, room: int, at_most: int) -> None:
        """Forget the oldest entries, some at once: the first entries of a dictionary are found by
        skipping all that were deleted before them."""
        size, entries, masks = self._sizes[replica], self._lists[replica], self._masks
        for block in list(islice(entries, at_most)):
            if size <= room:
                break
            size -= entries.pop(block).blocks
            self.blocks -= 1
            mask = masks[block] & ~bit
            if mask:
                masks[block] = mask
            else:
                del masks[block]
        self._sizes[replica] = size

    def _sweep(self) -> None:
        """Clear a few of the blocks of replicas that are gone."""
        if not self._retired:
            return
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
