"""Which KV blocks are in which replica's cache, by the engines' own events."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from kvasir.wire.kv_events import MEDIUM_GPU, BlockRemoved, BlockStored
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.index.block_table import SHARDS, ReplicaTable
from kvasir_router.index.cached_replica import CachedReplica
from kvasir_router.index.foreign_hashes import ForeignHashes, UnknownBlocksError, own_key
from kvasir_router.index.prefix_search import prefix_depths
from kvasir_router.index.replica_bits import ReplicaBits
from kvasir_router.index.text_map import TextMap
from kvasir_router.options.policy_options import MAX_RESIDENT_BLOCKS

BYTES_PER_BLOCK = 100
"""Bytes of memory for a block of a Kvasir engine: its hash and its place in a dictionary."""
BYTES_PER_FOREIGN_BLOCK = 80
"""More of it, for a block of another engine: that engine's hash, its place in a dictionary."""

_MAX_TABLES = 16
_FOREIGN_SHARES = 16
"""Shares of the bound on blocks, of which a foreign engine's own hashes get one."""
_BACK_SCAN = 2
_SWEPT_SHARDS, _SWEPT_BLOCKS = 32, 256
"""Shards and blocks that each event searches for replicas that are gone. One shard would be enough
for large tables alone: a small one has as many, and its few events would take an hour for them."""


class Resident(NamedTuple):
    """Resident part of a known text in one replica, in blocks."""

    text_blocks: int
    """Leading text blocks whose KV blocks are all there."""
    kv_blocks: int
    """KV blocks that the last of these text blocks determines."""
    gpu_blocks: int
    """Leading ones of `kv_blocks` in GPU memory; the others are in a lower tier."""
    refuted: bool
    """The KV blocks of the next text block are known, and are not there."""


class BlockLog(Protocol):
    """Receiver of events that passes them on to copies of the index."""

    def held(
        self, replica: CachedReplica, group: int, tier: str, block_size: int, keys: Sequence[int]
    ) -> None:
        """The replica holds these blocks, by their own hashes."""

    def dropped(self, replica: CachedReplica, group: int, tier: str, keys: Sequence[int]) -> None:
        """It holds these no more."""

    def cleared(self, replica: CachedReplica) -> None:
        """It holds nothing."""


class Residency:
    """Block residency by KV group and tier. What events say, a feed tells (BlockSink).

    A prefix is held if every KV group of the replica holds it. A replica counts here from its first
    event on.
    """

    def __init__(self, max_blocks: int = MAX_RESIDENT_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self._bits = ReplicaBits()
        self._tables: dict[tuple[int, str], ReplicaTable] = {}
        """By KV group and tier."""
        self._groups: dict[int, int] = {}
        """KV group -> mask of the replicas that have it."""
        self._foreign: dict[CachedReplica, ForeignHashes] = {}
        self._has_tiers = False
        self._sweeping = 0
        self._next_shard = 0
        self._trash: list[dict[int, int]] = []
        self.refused: Counter[str] = Counter()
        """Events that could not be kept, by reason."""
        self.seed = b""
        """That of the fleet's hashes, under which foreign engines' blocks are kept."""
        self.block_size = 16
        """Tokens of a KV block, as events say."""
        self.journal: BlockLog | None = None

    @property
    def blocks(self) -> int:
        """Blocks known, of all groups and tiers."""
        return sum(len(table) for table in self._tables.values())

    @property
    def evicted(self) -> int:
        """Blocks forgotten because there were too many."""
        return sum(table.evicted for table in self._tables.values())

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        foreign = sum(len(hashes.table) for hashes in self._foreign.values())
        return self.blocks * BYTES_PER_BLOCK + foreign * BYTES_PER_FOREIGN_BLOCK

    def stored(self, replica: CachedReplica, event: BlockStored) -> None:
        """Blocks are in the replica's cache."""
        foreign = self._foreign_hashes(replica)
        if foreign is None:
            keys = list(map(own_key, event.block_hashes))
        else:
            try:
                keys = foreign.stored(event)
            except UnknownBlocksError as error:
                self._begin(replica)
                self.refused[error.reason] += 1
                return
        group, tier = event.group_idx or 0, event.medium or MEDIUM_GPU
        block_size = event.block_size or self.block_size
        self.hold(replica, group, tier, block_size, keys)
        if self.journal is not None:
            self.journal.held(replica, group, tier, block_size, keys)

    def removed(self, replica: CachedReplica, event: BlockRemoved) -> None:
        """Blocks have left it."""
        foreign = self._foreign_hashes(replica)
        if foreign is None:
            keys = list(map(own_key, event.block_hashes))
        else:
            keys = list(foreign.known(event.block_hashes))
        group, tier = event.group_idx or 0, event.medium or MEDIUM_GPU
        self.drop(replica, group, tier, keys)
        if foreign is not None:
            bit = self._bits.bit(replica)
            foreign.removed(event.block_hashes, lambda key: self._anywhere(key) & bit)
        if self.journal is not None:
            self.journal.dropped(replica, group, tier, keys)

    def hold(
        self, replica: CachedReplica, group: int, tier: str, block_size: int, keys: Sequence[int]
    ) -> None:
        """`stored`, by the blocks' own hashes."""
        bit = self._begin(replica)
        table = self._table(group, tier)
        if table is None:
            self.refused["tables"] += 1
            return
        self._groups[group] |= bit
        self.block_size = block_size
        table.add(keys, bit)

    def drop(self, replica: CachedReplica, group: int, tier: str, keys: Sequence[int]) -> None:
        """`removed`, by the blocks' own hashes."""
        bit = self._begin(replica)
        table = self._tables.get((group, tier))
        if table is not None:
            table.discard(keys, bit)

    def knows(self, replica: CachedReplica) -> bool:
        """Return True if the replica has events."""
        return bool(self._bits.bit(replica))

    def holders(self, keys: Iterable[int]) -> dict[tuple[CachedReplica, int, str], list[int]]:
        """Return the blocks among these that are held, by replica, KV group and tier."""
        alive = self._bits.alive
        held: dict[tuple[CachedReplica, int, str], list[int]] = {}
        for key in keys:
            for (group, tier), table in self._tables.items():
                for replica in self._bits.replicas(table.holders(key) & alive):
                    held.setdefault((replica, group, tier), []).append(key)
        return held

    def cleared(self, replica: CachedReplica) -> None:
        """Nothing is known to be in it; what follows is all there is."""
        self.forget_replica(replica)
        self._begin(replica)
        if self.journal is not None:
            self.journal.cleared(replica)

    def forget_replica(self, replica: CachedReplica) -> None:
        """The replica went or restarted. Its bit is cleared with the events that follow."""
        bit = self._bits.retire(replica)
        for group in self._groups:
            self._groups[group] &= ~bit
        foreign = self._foreign.pop(replica, None)
        if foreign is not None:
            self._trash += foreign.table.shards

    def reseed(self, seed: bytes) -> None:
        """The fleet's hashes have another seed: forget what foreign engines have told."""
        self.seed = seed
        for replica in list(self._foreign):
            self.cleared(replica)

    def match(self, texts: TextMap, chain: Sequence[int]) -> dict[CachedReplica, Resident]:
        """Return what each replica with events has of the chain as far as it is known; also those
        that have nothing of it. Empty for an unknown text."""
        alive = self._bits.alive
        known = texts.known(chain) if alive else 0
        if not known:
            return {}
        depths = self._depths(texts, chain, known, gpu_only=False)
        on_gpu = depths
        if self._has_tiers:
            on_gpu = self._depths(texts, chain, known, gpu_only=True)
        found = {}
        for replica in self._bits.replicas(alive):
            depth, gpu_depth = depths.get(replica, 0), on_gpu.get(replica, 0)
            kv_blocks = texts.at(chain[depth - 1])[0] if depth else 0
            gpu_blocks = texts.at(chain[gpu_depth - 1])[0] if gpu_depth else 0
            found[replica] = Resident(depth, kv_blocks, gpu_blocks, depth < known)
        return found

    def _depths(
        self, texts: TextMap, chain: Sequence[int], known: int, *, gpu_only: bool
    ) -> dict[CachedReplica, int]:
        """Leading text blocks of which each replica has everything."""
        somewhere = 0
        for mask in self._groups.values():
            somewhere |= mask
        holders = partial(self._holders, gpu_only) if len(self._tables) > 1 else self._anywhere

        def mask_at(at: int) -> int:
            blocks, last = texts.at(chain[at])
            return holders(last) & somewhere if blocks else somewhere

        found = {}
        for bits, depth in prefix_depths(mask_at, 0, known, somewhere, back_scan=_BACK_SCAN):
            for replica in self._bits.replicas(bits):
                found[replica] = depth
        return found

    def _holders(self, gpu_only: bool, key: int) -> int:
        """The replicas that hold the block in each of their groups; bits of others may be set."""
        held = dict.fromkeys(self._groups, 0)
        for (group, tier), table in self._tables.items():
            if tier == MEDIUM_GPU or not gpu_only:
                held[group] |= table.holders(key)
        holders = -1
        for group, mask in held.items():
            holders &= mask | ~self._groups[group]
        return holders

    def _anywhere(self, key: int) -> int:
        """The replicas that hold the block in any group and tier."""
        holders = 0
        for table in self._tables.values():
            holders |= table.holders(key)
        return holders

    def _table(self, group: int, tier: str) -> ReplicaTable | None:
        """None when there are too many."""
        table = self._tables.get((group, tier))
        if table is None and len(self._tables) < _MAX_TABLES:
            table = self._tables[group, tier] = ReplicaTable(self.max_blocks)
            self._groups.setdefault(group, 0)
            self._has_tiers = self._has_tiers or tier != MEDIUM_GPU
        return table

    def _begin(self, replica: CachedReplica) -> int:
        """The bit of a replica that has events."""
        self._sweep()
        return self._bits.bit_for(replica)

    def _foreign_hashes(self, replica: CachedReplica) -> ForeignHashes | None:
        """None for engines whose hashes are our own."""
        found = self._foreign.get(replica)
        if found is None and replica.spec.engine is not EngineKind.KVASIR:
            share = self.max_blocks // max(_FOREIGN_SHARES, len(self._foreign) + 1)
            found = self._foreign[replica] = ForeignHashes(share, self.seed)
        return found

    def _sweep(self) -> None:
        """Clear some of what replicas that are gone have left, a bounded piece each time."""
        if self._trash:
            self._trash.pop()
        if not self._sweeping:
            self._sweeping, self._next_shard = self._bits.retired, 0
            return
        end, seen = min(SHARDS, self._next_shard + _SWEPT_SHARDS), 0
        while self._next_shard < end and seen < _SWEPT_BLOCKS:
            for table in self._tables.values():
                seen += table.clear(self._sweeping, self._next_shard)
            self._next_shard += 1
        if self._next_shard == SHARDS:
            self._bits.freed(self._sweeping)
            self._sweeping = 0
