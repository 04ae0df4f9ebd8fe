"""Interface of a group's collectives."""

from __future__ import annotations

from typing import Protocol

import torch


class Communicator(Protocol):
    """Collectives over the ranks of one group. All ranks call the same ones in the same order."""

    name: str
    """The library, as the log names it."""
    capturable: bool
    """True if `all_reduce` and `all_gather` can be captured into CUDA graphs."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of `x` over ranks, the same bits on each; may overwrite `x`."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return [ranks, *x.shape], in rank order."""
        ...

    def all_reduce_min(self, numbers: list[int]) -> list[int]:
        """Return the smallest of each number over ranks; waits for the device."""
        ...

    def close(self, *, failed: bool = False) -> None:
        """Leave the group. `failed`: other ranks are gone, and what was launched may wait for them
        on the device for ever, and with it whoever frees something there."""
        ...
