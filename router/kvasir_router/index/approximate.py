"""What replicas probably have in their KV caches, by what was sent to them."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from kvasir.text_chain import BLOCK_BYTES
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.replica_bits import ReplicaBits
from kvasir_router.index.search import prefix_depths

DEFAULT_CAPACITY_TOKENS = 500_000
"""Of a replica that does not say how large its KV cache is."""
MAX_BLOCKS = 2_000_000
"""Text blocks of all replicas of a model together."""
BYTES_PER_BLOCK = 320
"""Of memory, for a replica's text block: its hash, its place in the LRU list, its mask."""

_SWEPT_PER_CALL = 64
_EMPTY: OrderedDict[int, float] = OrderedDict()


class ApproximateIndex:
    """Text blocks sent to each replica, in an LRU list as long as the replica's KV cache.

    A prompt's last block is its least recently used one, so a replica that has a block has all
    before it, and a lookup is one bisection for each different length of hit.
    """

    def __init__(
        self, max_blocks: int = MAX_BLOCKS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_blocks = max_blocks
        self._clock = clock
        self._bits = ReplicaBits()
        self._masks: dict[int, int] = {}
        self._lists: dict[Replica, OrderedDict[int, float]] = {}
        """For each replica: block -> when it was last sent there without being there already."""
        self._retired: list[tuple[int, OrderedDict[int, float]]] = []
        self.blocks = 0
        """Pairs of a replica and a text block, with those not cleared yet."""

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        return self.blocks * BYTES_PER_BLOCK

    def match(self, chain: Sequence[int]) -> dict[Replica, int]:
        """Leading blocks that each replica has; only those that have any."""
        get, alive = self._masks.get, self._bits.alive
        first = get(chain[0], 0) & alive if chain else 0
        if not first:
            return {}
        depths = {}
        for bits, depth in prefix_depths(lambda at: get(chain[at], 0), 0, len(chain), first):
            for replica in self._bits.replicas(bits):
                depths[replica] = depth
        return depths

    def sent_since(self, chain: Sequence[int], replica: Replica, start: int, since: float) -> int:
        """How many leading blocks the replica got of which those from `start` on were sent after
        `since` (by the clock); 0 if block `start` was not."""
        sent = self._lists.get(replica) or _EMPTY
        end = start
        while end < len(chain) and sent.get(chain[end], 0.0) > since:
            end += 1
        return end if end > start else 0

    def routed(
        self, chain: Sequence[int], replica: Replica, known: int = 0, capacity_tokens: int = 0
    ) -> None:
        """The prompt was sent to the replica, which had the first `known` blocks already. As much
        text is remembered as fits into a KV cache of `capacity_tokens`; 0 = unknown."""
        bit = self._bits.take(replica)
        blocks = self._lists.get(replica)
        if blocks is None:
            blocks = self._lists[replica] = OrderedDict()
        self._sweep()
        known = min(known, self._listed(chain, blocks))
        now, masks, to_end = self._clock(), self._masks, blocks.move_to_end
        before = len(blocks)
        for block in reversed(chain[known:]):
            if block in blocks:
                to_end(block)
            else:
                masks[block] = masks.get(block, 0) | bit
            blocks[block] = now
        deque(map(to_end, reversed(chain[:known])), maxlen=0)
        self.blocks += len(blocks) - before
        self._evict(blocks, bit, self._room(capacity_tokens), len(chain) + _SWEPT_PER_CALL)

    def forget(self, replica: Replica) -> None:
        """The replica went or restarted. What it had is cleared with the calls that follow."""
        bit = self._bits.retire(replica)
        if bit:
            self._retired.append((bit, self._lists.pop(replica)))

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

    def _listed(self, chain: Sequence[int], blocks: OrderedDict[int, float]) -> int:
        """How many leading blocks are in the list."""
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def _room(self, capacity_tokens: int) -> int:
        """Blocks that a replica may have in its list."""
        tokens = capacity_tokens or DEFAULT_CAPACITY_TOKENS
        return max(1, min(tokens * 4 // BLOCK_BYTES, self._max_blocks // len(self._lists)))

    def _evict(self, blocks: OrderedDict[int, float], bit: int, room: int, at_most: int) -> None:
        """A room that has become much smaller is reached over many calls."""
        for _ in range(min(len(blocks) - room, at_most)):
            self._clear(blocks.popitem(last=False)[0], bit)

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
