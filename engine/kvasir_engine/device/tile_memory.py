"""Sizes of the tiles of queries, keys and values that a program keeps in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import torch

HOPPER_BYTES = 227 << 10
"""Shared memory of a program on compute capability 9.0, which is assumed without a GPU."""
MIN_ROWS = 16
"""Fewest rows and keys of a matrix product in Triton."""
USED = 0.88
"""Share of it that tiles use; the rest is the compiler's own."""


@cache
def program_bytes(device: torch.device) -> int:
    """Return the shared memory in bytes that one program may use on `device`."""
    if device.type != "cuda":
        return HOPPER_BYTES
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks the field
    return int(properties.shared_memory_per_block_optin)


def tile_bytes(device: torch.device) -> int:
    """Return the shared memory in bytes that a program's tiles may use on `device`."""
    return int(program_bytes(device) * USED)


def fitted(rows: int, keys: int, stages: int, *, row_bytes: int, most: int) -> tuple[int, int, int]:
    """Return `rows` queries and `stages` of `keys` keys and values, or less of them where
    `row_bytes` of each would take more than `most`; a dot's operands have 16 rows at least."""
    while row_bytes * (rows + 2 * keys * stages) > most:
        if stages > 2:
            stages -= 1
        elif keys > 32:
            keys //= 2
        elif rows > 32:
            rows //= 2
        elif keys > MIN_ROWS:
            keys //= 2
        elif stages > 1:
            stages -= 1
        elif rows > MIN_ROWS:
            rows //= 2
        else:
            break
    return rows, keys, stages


@dataclass(frozen=True, slots=True)
class TileTuning:
    """Launch parameters of a kernel whose programs keep tiles of queries and of keys and values."""

    rows: int
    """Queries of one program: tokens x heads."""
    keys: int
    warps: int
    stages: int

    def fitted(self, padded_dim: int, itemsize: int, most: int) -> Self:
        """Return the same, or less of it where tiles of such heads would take more than `most`
        bytes."""
        row_bytes = padded_dim * itemsize
        rows, keys, stages = fitted(
            self.rows, self.keys, self.stages, row_bytes=row_bytes, most=most
        )
        return replace(self, rows=rows, keys=keys, stages=stages)
