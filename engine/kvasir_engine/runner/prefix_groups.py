"""Groups of decode rows that begin with the same physical blocks, where using that pays.

Only prefix hits and forks make two rows name one block, and both give it at a row's start: the
tables that rows begin with are all that must be known. A block that two rows name is full and
final, since the cache finds no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.attention.base import SharedPrefixes
from kvasir_engine.device.upload import upload
from kvasir_engine.step_plan import Int32Array, StepPlan, common_length

MAX_GROUPS = 8
TILE_QUERIES = 128
"""Queries of a tile: as many as the kernels multiply at once."""
MIN_TILE_ENTRIES = 16
LAUNCH_COST_BYTES = 24 << 20
"""Bytes that memory could deliver in the time of the one kernel more, 6 us."""


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Entries of a batch, and how many leading blocks they have in common."""

    entries: tuple[int, ...]
    blocks: int

    @property
    def saved(self) -> int:
        """Blocks that need not be read again."""
        return (len(self.entries) - 1) * self.blocks


def best_groups(tables: list[Int32Array]) -> list[PrefixGroup]:
    """Return at most MAX_GROUPS disjoint groups of tables: each time the one that saves most.

    Sorted, tables with a common prefix stand beside each other: a group is a rectangle under the
    histogram of neighbours' common prefixes, and what it saves is the rectangle's area.
    """
    keys = [table.astype(">i4").tobytes() for table in tables]
    order = sorted(range(len(tables)), key=keys.__getitem__)
    common = [common_length(tables[a], tables[b]) for a, b in pairwise(order)]
    found: list[PrefixGroup] = []
    ranges = [(0, len(common))]
    while ranges and len(found) < MAX_GROUPS:
        rectangles = [_largest_rectangle(common, *each) for each in ranges]
        best = max(range(len(ranges)), key=lambda i: _area(*rectangles[i]))
        (begin, end, height), (first, last) = rectangles[best], ranges.pop(best)
        if not height:
            break
        found.append(PrefixGroup(tuple(sorted(order[begin : end + 1])), height))
        # The neighbours of the group's ends belong to no other group of it.
        ranges += [(first, max(first, begin - 1)), (min(last, end + 1), last)]
        ranges = [(a, b) for a, b in ranges if a < b]
    return found


def _area(begin: int, end: int, height: int) -> int:
    return (end - begin) * height


def _largest_rectangle(heights: list[int], begin: int, end: int) -> tuple[int, int, int]:
    """Return (begin, end, height) of the largest rectangle under heights[begin:end], with a
    stack."""
    best = (begin, begin, 0)
    stack: list[tuple[int, int]] = []
    for at in range(begin, end + 1):
        height = heights[at] if at < end else 0
        start = at
        while stack and stack[-1][1] >= height:
            start, tall = stack.pop()
            if _area(start, at, tall) > _area(*best):
                best = (start, at, tall)
        stack.append((start, height))
    return best


@dataclass(frozen=True, slots=True)
class PrefixTiles:
    """Layout of groups in the arrays of SharedPrefixes."""

    block_size: int
    entries: int
    """Entries of a tile."""

    @classmethod
    def for_heads(cls, group: int, block_size: int) -> PrefixTiles:
        """Return tiles of as many queries as a program takes; `group` query heads share a KV
        head."""
        return cls(
            block_size, max(MIN_TILE_ENTRIES, TILE_QUERIES // (1 << (group - 1).bit_length()))
        )

    def count(self, entries: int) -> int:
        """Return the number of tiles that hold any groups of this many entries."""
        return -(-entries // self.entries) + MAX_GROUPS

    def pack(self, groups: list[PrefixGroup], entries: int) -> Int32Array:
        """Return the arrays of SharedPrefixes for a batch of `entries`, one after the other."""
        tiles = self.count(entries)
        members = np.full((tiles, self.entries), -1, dtype=np.int32)
        tile_lens, prefix_lens = np.zeros(tiles, dtype=np.int32), np.zeros(entries, dtype=np.int32)
        tile = 0
        for group in groups:
            length = group.blocks * self.block_size
            prefix_lens[list(group.entries)] = length
            for first in range(0, len(group.entries), self.entries):
                part = group.entries[first : first + self.entries]
                members[tile, : len(part)] = part
                tile_lens[tile] = length
                tile += 1
        return np.concatenate([members.ravel(), tile_lens, prefix_lens])

    def unpack(self, packed: torch.Tensor, entries: int) -> SharedPrefixes:
        """Return views of what `pack` made."""
        tiles = self.count(entries)
        sizes = [tiles * self.entries, tiles, entries]
        members, tile_lens, prefix_lens = torch.split(packed, sizes)
        return SharedPrefixes(members.view(tiles, self.entries), tile_lens, prefix_lens)

    def on_device(
        self, groups: list[PrefixGroup], entries: int, device: torch.device
    ) -> SharedPrefixes:
        """Upload the groups of a batch whose first `entries` are decodes."""
        return self.unpack(upload(self.pack(groups, entries), device), entries)


class PrefixGroups:
    """The tables that rows begin with, and the groups of the batch that was asked for last."""

    def __init__(self, *, block_bytes: int, query_bytes: int) -> None:
        """Note nothing yet. `block_bytes` of a layer's keys and values in a block; `query_bytes` of
        fp32 partial results of one entry."""
        self._block_bytes = block_bytes
        self._query_bytes = query_bytes
        self._tables: dict[int, Int32Array] = {}
        self._first_blocks: Counter[int] = Counter()
        self._asked: bytes | None = None
        self._groups: list[PrefixGroup] = []

    def apply(self, plan: StepPlan) -> None:
        """Note the tables of rows that begin anew in this plan."""
        for init in plan.inits:
            self._put(init.row, init.block_tables[0])

    def fork(self, plan: StepPlan) -> None:
        """Note the tables of rows that begin after the plan's forward pass."""
        for fork in plan.forks:
            self._put(fork.dst, fork.block_tables[0])

    def _put(self, row: int, table: Int32Array) -> None:
        before = self._tables.get(row)
        if before is not None and len(before):
            self._first_blocks[int(before[0])] -= 1
        self._tables[row] = table
        if len(table):
            self._first_blocks[int(table[0])] += 1
        self._asked = None

    def groups_of(self, rows: npt.NDArray[np.int32]) -> list[PrefixGroup]:
        """Return the groups of a batch's entries worth attending to together; worked out when it
        changes."""
        asked = rows.tobytes()
        if asked != self._asked:
            self._asked, self._groups = asked, self._worthwhile(rows)
        return self._groups

    def _worthwhile(self, rows: npt.NDArray[np.int32]) -> list[PrefixGroup]:
        entries = list(self._candidates(rows))
        if len(entries) < 2:
            return []
        found = best_groups([self._tables[int(rows[entry])] for entry in entries])
        groups = [
            PrefixGroup(tuple(entries[i] for i in each.entries), each.blocks) for each in found
        ]
        saved = sum(group.saved for group in groups) * self._block_bytes
        # Partial results are written and read, of the prefix and of what is an entry's own.
        cost = LAUNCH_COST_BYTES + 4 * self._query_bytes * len(rows)
        return groups if saved > cost else []

    def _candidates(self, rows: npt.NDArray[np.int32]) -> Iterator[int]:
        """Yield the entries that some row, perhaps none of the batch, shares its first block
        with."""
        for entry, row in enumerate(rows.tolist()):
            table = self._tables.get(row)
            if table is not None and len(table) and self._first_blocks[int(table[0])] > 1:
                yield entry
