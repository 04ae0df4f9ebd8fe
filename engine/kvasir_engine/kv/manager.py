"""The KV cache of one engine: pools by group, prefix hits that hold in all of them, commits.

Nothing here knows about steps: the scheduler decides when a block may be released, and calls
`commit` only for blocks whose token ids the CPU knows and whose writing step was launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kvasir.wire.block_hash import HASH_BYTES, block_hash, root_hash
from kvasir_engine.kv.block_pool import BlockListener, BlockPool
from kvasir_engine.kv.block_table import BlockTables
from kvasir_engine.kv.groups import NULL_BLOCK, KVGroupSpec
from kvasir_engine.step_plan import Int32Array, common_length

_Find = Callable[[int, int], int | None]
"""Maps a group and the index of a full block to the cached block, None if there is none."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """`num_tokens` leading tokens are cached; `tables` has each group's blocks for them."""

    num_tokens: int
    tables: list[list[int]]
    hashes: list[bytes]


@dataclass(frozen=True, slots=True)
class _LastLookup:
    """Result of the last look-up: prompts that come one after the other often begin alike."""

    root: bytes
    tokens: Int32Array
    blocks: list[int]
    hashes: list[bytes]
    forgotten: int
    """BlockPool.forgotten at that time."""


class KVManager:
    """Block pools of all KV groups. Every group has the same block size."""

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        *,
        caching: bool = True,
        prefix_seed: bytes = b"",
        listeners: Sequence[BlockListener | None] | None = None,
    ) -> None:
        """`prefix_seed`: key of the block hashes (kvasir.wire.block_hash)."""
        self.groups = tuple(groups)
        self.block_size = groups[0].block_size
        self.caching = caching
        self.prefix_seed = prefix_seed
        self.windowed = any(spec.window is not None for spec in groups)
        self._anchor = next((i for i, spec in enumerate(groups) if spec.window is None), None)
        self._last_walk: _LastLookup | None = None
        heard = listeners or [None] * len(groups)
        self.pools = [
            BlockPool(count, caching=caching, listener=listener)
            for count, listener in zip(num_blocks, heard, strict=True)
        ]

    def rebuild(self) -> None:
        """Begin again with pools of free blocks; whoever holds some holds them no more."""
        self._last_walk = None
        self.pools = [pool.rebuilt() for pool in self.pools]

    def new_tables(
        self, cache_salt: str = "", known_hashes: bytes = b"", *, lora: str = ""
    ) -> BlockTables:
        """Return the empty tables of a new sequence; `known_hashes` are those of its prompt's
        leading full blocks, made elsewhere."""
        root = root_hash(self.prefix_seed, cache_salt=cache_salt, lora=lora)
        return BlockTables([[] for _ in self.groups], root, known_hashes)

    def find_prefix(self, tokens: Int32Array, root: bytes, known_hashes: bytes) -> PrefixHit:
        """Return the longest cached prefix of `tokens` that leaves at least one token to compute.

        `known_hashes` are hashes of leading blocks made elsewhere; further ones are made here.
        Takes no references.
        """
        blocks, hashes = self._find_full(tokens, root, known_hashes)
        find = partial(self._find, tokens, root, hashes)
        count = self._longest_in_all_groups(find, len(blocks))
        tables = [
            # Found already, every one of them.
            blocks[:count] if group == self._anchor else self._group_blocks(find, group, count)
            for group in range(len(self.groups))
        ]
        return PrefixHit(count * self.block_size, tables, hashes[:count])

    def acquire_prefix(self, tables: BlockTables, hit: PrefixHit) -> None:
        """Reference the hit's blocks and put them into (empty) `tables`."""
        for group, blocks in enumerate(hit.tables):
            first, held = 0, blocks
            if self.groups[group].window is not None:
                first = next((i for i, b in enumerate(blocks) if b != NULL_BLOCK), len(blocks))
                held = [block for block in blocks[first:] if block != NULL_BLOCK]
            self.pools[group].share(held)
            tables.tables[group] = list(blocks)
            tables.windows_start[group] = first
        tables.hashes = list(hit.hashes)

    def keep_tail(self, tables: BlockTables, tokens: Int32Array, num_tokens: int) -> None:
        """Make the block that the first `num_tokens` tokens end in findable for copying."""
        full, size = len(tables.hashes), self.block_size
        if 0 < num_tokens - full * size < size:
            content = tokens[full * size : num_tokens].tobytes()
            for pool, table in zip(self.pools, tables.tables, strict=True):
                pool.keep_tail(table[full], tables.parent, content)

    def find_tail(self, tokens: Int32Array, root: bytes, hit: PrefixHit) -> list[int] | None:
        """Return the block of each group to copy so that only the last of `tokens` is left to
        compute."""
        if len(tokens) - 1 - hit.num_tokens >= self.block_size:
            return None
        content = tokens[hit.num_tokens : -1].tobytes()
        parent = hit.hashes[-1] if hit.hashes else root
        found = [pool.find_tail(parent, content) for pool in self.pools]
        blocks = [block for block in found if block is not None]
        return blocks if len(blocks) == len(found) else None

    def copy_tail(self, tables: BlockTables, tail: list[int]) -> list[tuple[int, int]]:
        """Append a block for each group's tail: (source, copy). Takes a reference to the source."""
        for pool, block in zip(self.pools, tail, strict=True):
            pool.share([block])
        return [(block, new) for block, [new] in zip(tail, self.append(tables, 1), strict=True)]

    def blocks_needed(self, tables: BlockTables, num_tokens: int) -> int:
        """Return the number of blocks to append to each group so that `num_tokens` tokens fit."""
        return max(0, -(-num_tokens // self.block_size) - len(tables.tables[0]))

    def max_blocks_held(self, num_tokens: int, chunk: int) -> list[int]:
        """Return the most blocks by group that a sequence of `num_tokens` tokens holds.

        A group with a window w keeps at most w - 1 tokens before the chunk being computed, and
        these may begin anywhere in a block.
        """
        whole = -(-num_tokens // self.block_size)
        return [
            whole
            if spec.window is None
            else min(whole, -(-(spec.window - 1 + chunk) // self.block_size) + 1)
            for spec in self.groups
        ]

    def can_append(self, count: int) -> bool:
        """Return True when every group can hand out `count` blocks now."""
        return all(pool.num_available >= count for pool in self.pools)

    @property
    def num_available(self) -> int:
        """Blocks that every group can hand out now."""
        return min(pool.num_available for pool in self.pools)

    def append(self, tables: BlockTables, count: int) -> list[list[int]]:
        """Append `count` fresh blocks in every group; returns them by group."""
        fresh = [pool.allocate(count) for pool in self.pools]
        for table, blocks in zip(tables.tables, fresh, strict=True):
            table.extend(blocks)
        return fresh

    def commit(self, tables: BlockTables, tokens: Int32Array, num_tokens: int) -> None:
        """Make findable every full block of the first `num_tokens` tokens not yet so."""
        if not self.caching:
            return
        parent = tables.parent
        first, end = len(tables.hashes), num_tokens // self.block_size
        for index, content in enumerate(self._contents(tokens, first, end), start=first):
            at = index * HASH_BYTES
            hash_ = tables.known[at : at + HASH_BYTES] or block_hash(parent, content)
            tables.hashes.append(hash_)
            for pool, table in zip(self.pools, tables.tables, strict=True):
                if table[index] != NULL_BLOCK:
                    pool.commit(table[index], hash_, parent, content)
            parent = hash_

    def outside_windows(self, tables: BlockTables, next_position: int) -> list[list[int]]:
        """Take out of `tables` the blocks no query at or after `next_position` sees.

        Returns them by group; they still hold their reference, which the caller releases when
        no launched step reads them any more.
        """
        gone: list[list[int]] = []
        for group, spec in enumerate(self.groups):
            table, start = tables.tables[group], tables.windows_start[group]
            if spec.window is None:
                gone.append([])
                continue
            end = max(start, min((next_position - spec.window + 1) // self.block_size, len(table)))
            gone.append([block for block in table[start:end] if block != NULL_BLOCK])
            table[start:end] = [NULL_BLOCK] * (end - start)
            tables.windows_start[group] = end
        return gone

    def release(self, blocks: Sequence[Sequence[int]]) -> None:
        """Drop one reference to each block, by group."""
        for pool, held in zip(self.pools, blocks, strict=True):
            pool.release(held)

    def usage(self) -> float:
        """Return the share of blocks held by requests, 0 to 1, of the fullest group."""
        return max(pool.num_referenced / pool.capacity for pool in self.pools)

    def reset_cache(self) -> None:
        """Forget all cached content."""
        for pool in self.pools:
            pool.reset_cache()

    def check_integrity(self) -> None:
        """Raise AssertionError unless every pool adds up."""
        for pool in self.pools:
            pool.check_integrity()

    def _contents(self, tokens: Int32Array, first: int, end: int) -> Iterator[bytes]:
        """Return the token bytes of blocks first .. end - 1."""
        size = self.block_size
        raw, step = tokens[first * size : end * size].tobytes(), size * tokens.itemsize
        return (raw[at : at + step] for at in range(0, len(raw), step))

    def _find_full(
        self, tokens: Int32Array, root: bytes, known: bytes
    ) -> tuple[list[int], list[bytes]]:
        """Return the leading hits in the first full group, and the hashes up to there."""
        blocks: list[int] = []
        hashes: list[bytes] = []
        if not self.caching:
            return blocks, hashes
        pool = None if self._anchor is None else self.pools[self._anchor]
        end = (len(tokens) - 1) // self.block_size
        last, forgotten = self._last_walk, 0 if pool is None else pool.forgotten
        if last is not None and (last.root, last.forgotten) == (root, forgotten):
            known_alike = min(common_length(last.tokens, tokens) // self.block_size, end)
            blocks, hashes = last.blocks[:known_alike], last.hashes[:known_alike]
        parent = hashes[-1] if hashes else root
        find = None if pool is None else pool.find
        first = len(hashes)
        for index, content in enumerate(self._contents(tokens, first, end), start=first):
            at = index * HASH_BYTES
            hash_ = known[at : at + HASH_BYTES] or block_hash(parent, content)
            block = NULL_BLOCK if find is None else find(hash_, parent, content)
            if block is None:
                break
            blocks.append(block)
            hashes.append(hash_)
            parent = hash_
        self._last_walk = _LastLookup(root, tokens, blocks, hashes, forgotten)
        return blocks[:], hashes[:]

    def _longest_in_all_groups(self, find: _Find, count: int) -> int:
        """Return the most leading blocks, at most `count`, that every group can serve."""
        settled = False
        while count and not settled:
            settled = True
            for group in range(len(self.groups)):
                if group != self._anchor:
                    fitting = self._fit_window(find, group, count)
                    settled = settled and fitting == count
                    count = fitting
        return count

    def _fit_window(self, find: _Find, group: int, count: int) -> int:
        """Return the largest c <= `count` for which a group has every block it still needs.

        A missing block below c is needed by every larger c whose window reaches it, so the
        search goes on at the gap itself.
        """
        spec = self.groups[group]
        while count:
            gap = next(
                (
                    index
                    for index in reversed(range(count))
                    if self._needed(spec, index, count) and find(group, index) is None
                ),
                None,
            )
            if gap is None:
                return count
            count = gap
        return 0

    def _needed(self, spec: KVGroupSpec, index: int, count: int) -> bool:
        if spec.window is None:
            return True
        first_key = count * self.block_size - spec.window + 1
        return (index + 1) * self.block_size > first_key

    def _find(
        self, tokens: Int32Array, root: bytes, hashes: list[bytes], group: int, index: int
    ) -> int | None:
        parent = hashes[index - 1] if index else root
        [content] = self._contents(tokens, index, index + 1)
        return self.pools[group].find(hashes[index], parent, content)

    def _group_blocks(self, find: _Find, group: int, count: int) -> list[int]:
        spec = self.groups[group]
        blocks = []
        for index in range(count):
            needed = self._needed(spec, index, count)
            block = find(group, index) if needed else None
            blocks.append(NULL_BLOCK if block is None else block)
        return blocks
