"""Tables of KV blocks: large, bounded, and without pauses."""

from collections.abc import Iterable
from itertools import islice

SHARDS = 4096
_SHARD_BITS = SHARDS - 1


class BlockTable:
    """A dictionary of ints in shards, with at most about `max_entries`; beyond them the oldest go.

    One dictionary of ten million entries would stop the process for half a second whenever it
    grows; each of these takes well under a millisecond. Evicting the oldest of a plain dictionary
    is cheap only in batches, since it skips over everything deleted before.
    """

    __slots__ = ("_room", "evicted", "shards")

    def __init__(self, max_entries: int) -> None:
        self._room = max(8, max_entries // SHARDS)
        self.shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        """Go through them, or let go of them, one at a time."""
        self.evicted = 0

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def get(self, key: int) -> int:
        """The value; 0 if there is none."""
        return self.shards[key & _SHARD_BITS].get(key, 0)

    def put(self, key: int, value: int) -> None:
        shard = self.shards[key & _SHARD_BITS]
        shard[key] = value
        if len(shard) > self._room:
            self._evict(shard)

    def pop(self, key: int) -> int:
        """The value that was there; 0 if there was none."""
        return self.shards[key & _SHARD_BITS].pop(key, 0)

    def _evict(self, shard: dict[int, int]) -> None:
        oldest = list(islice(shard, max(1, self._room // 16)))
        for key in oldest:
            del shard[key]
        self.evicted += len(oldest)


class ReplicaTable:
    """KV block -> mask of the replicas that hold it, of one KV group in one tier."""

    __slots__ = ("_masks", "_table")

    def __init__(self, max_blocks: int) -> None:
        self._table = BlockTable(max_blocks)
        self._masks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._table)

    @property
    def evicted(self) -> int:
        """Blocks forgotten because there were too many."""
        return self._table.evicted

    def holders(self, key: int) -> int:
        return self._table.get(key)

    def add(self, keys: Iterable[int], bit: int) -> None:
        """The replica holds these blocks."""
        table, shards = self._table, self._table.shards
        alone = self._shared(bit)
        for key in keys:
            shard = shards[key & _SHARD_BITS]
            mask = shard.get(key)
            if mask is None:
                table.put(key, alone)
            elif not mask & bit:
                shard[key] = self._shared(mask | bit)

    def discard(self, keys: Iterable[int], bit: int) -> None:
        """The replica does not hold these any more."""
        shards = self._table.shards
        for key in keys:
            shard = shards[key & _SHARD_BITS]
            mask = shard.get(key, 0)
            if mask == bit:
                del shard[key]
            elif mask & bit:
                shard[key] = self._shared(mask & ~bit)

    def clear(self, bits: int, shard: int) -> int:
        """Clear the replicas' bits in one shard; returns how many blocks it had."""
        entries = self._table.shards[shard]
        count = len(entries)
        for key in [key for key, mask in entries.items() if mask & bits]:
            mask = entries[key] & ~bits
            if mask:
                entries[key] = self._shared(mask)
            else:
                del entries[key]
        return count

    def _shared(self, mask: int) -> int:
        """One object for all equal masks: there are few of them, and up to millions of blocks."""
        if len(self._masks) > 65_536:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)
