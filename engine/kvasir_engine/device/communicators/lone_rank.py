"""Collectives of a rank without others, for a start that only has its kernels compiled."""

from __future__ import annotations

import torch


class LoneRank:
    """Results of the right shapes, whose values mean nothing."""

    name = "none"
    capturable = True

    def __init__(self, size: int) -> None:
        self._size = size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_reduce."""
        return x

    def one_shot_sum(self, num_bytes: int, dtype: torch.dtype) -> None:
        """Communicator.one_shot_sum."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_gather."""
        return x.new_empty((self._size, *x.shape))

    def all_reduce_min(self, numbers: list[int]) -> list[int]:
        """Communicator.all_reduce_min."""
        return numbers

    def close(self, *, failed: bool = False) -> None:
        """Communicator.close."""
