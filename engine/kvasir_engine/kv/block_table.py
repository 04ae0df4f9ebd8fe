"""The blocks one sequence holds, one table a KV group."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvasir_engine.kv.groups import NULL_BLOCK


@dataclass(slots=True)
class BlockTables:
    """Blocks of one sequence, by group.

    `tables[g][i]` holds tokens block_size * i onward in group g; NULL_BLOCK = not kept.

    `hashes` chains over the blocks made findable so far, 16 bytes each; the next block's parent
    is the last of them, or `root`.
    """

    tables: list[list[int]]
    root: bytes
    known: bytes = b""
    """Hashes of the prompt's leading full blocks, 16 bytes each, that need not be made again."""
    hashes: list[bytes] = field(default_factory=list)
    windows_start: list[int] = field(default_factory=list)
    """First block index of each group that is not yet given back."""

    def __post_init__(self) -> None:
        if not self.windows_start:
            self.windows_start = [0] * len(self.tables)

    @property
    def parent(self) -> bytes:
        """Parent hash of the next block to be made findable."""
        return self.hashes[-1] if self.hashes else self.root

    def held(self, group: int) -> list[int]:
        """Return the physical blocks of `group` that this sequence references."""
        return [block for block in self.tables[group] if block != NULL_BLOCK]
