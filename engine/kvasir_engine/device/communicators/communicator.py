"""Interface of a group's collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from kvasir_engine.device.communicators.one_shot_kernel import OneShotSum


class Communicator(Protocol):
    """Collectives over the ranks of one group. All ranks call the same ones in the same order."""

    name: str
    """The library, as the log names it."""
    capturable: bool
    """True if `all_reduce` and `all_gather` can be captured into CUDA graphs."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of `x` over ranks, the same bits on each; may overwrite `x`."""
        ...

    def one_shot_sum(self, num_bytes: int, dtype: torch.dtype) -> OneShotSum | None:
        """Return what sums a tensor of this size and type over ranks inside a kernel that does
        more, None where `all_reduce` is faster or the only way."""
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
