"""Choice of the all-reduce for a tensor, by its size and type."""

from __future__ import annotations

from enum import StrEnum

import torch

ALIGNMENT = 16
"""Bytes that one thread moves at once."""
SUMMED_DTYPES = (torch.float32, torch.bfloat16)
"""Types that torch's operations on symmetric memory sum."""
MAX_BUFFER_BYTES = 64 << 20
"""Size of the symmetric buffer; what is larger is NCCL's."""
MIN_BUFFER_BYTES = 2 << 20
_MAX_ONE_SHOT_BYTES = {2: 1 << 20, 3: 512 << 10, 4: 512 << 10}
_MAX_ONE_SHOT_BYTES_OF_MANY = 256 << 10
_TWO_SHOT_RANKS = (2, 4, 8)
"""Numbers of ranks for which torch has the two-shot kernel."""


class AllReduce(StrEnum):
    """Algorithm of an all-reduce."""

    ONE_SHOT = "one-shot"
    """Every rank reads all of every other rank's tensor: one exchange of signals."""
    TWO_SHOT = "two-shot"
    """Every rank sums its share, then reads the others' sums: less is read, by two exchanges."""
    NCCL = "NCCL"


def max_one_shot_bytes(ranks: int) -> int:
    """Return the largest tensor for which one-shot was measured to be no slower (H100, NVLink)."""
    return _MAX_ONE_SHOT_BYTES.get(ranks, _MAX_ONE_SHOT_BYTES_OF_MANY)


def choose_all_reduce(
    num_bytes: int, dtype: torch.dtype, *, ranks: int, buffer_bytes: int
) -> AllReduce:
    """Return the fastest algorithm for a tensor; `buffer_bytes` is the symmetric buffer's size."""
    if dtype not in SUMMED_DTYPES or num_bytes % 4 or not 0 < num_bytes <= buffer_bytes:
        return AllReduce.NCCL
    if num_bytes <= max_one_shot_bytes(ranks):
        return AllReduce.ONE_SHOT
    if ranks in _TWO_SHOT_RANKS and num_bytes % ALIGNMENT == 0:
        return AllReduce.TWO_SHOT
    return AllReduce.NCCL


def buffer_bytes_for(step_bytes: int) -> int:
    """Return the size of a symmetric buffer for steps whose hidden states take `step_bytes`."""
    wanted = min(max(step_bytes, MIN_BUFFER_BYTES), MAX_BUFFER_BYTES)
    return -(-wanted // MIN_BUFFER_BYTES) * MIN_BUFFER_BYTES
