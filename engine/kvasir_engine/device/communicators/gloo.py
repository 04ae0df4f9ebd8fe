"""Collectives of CPU processes, by gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist


class GlooCommunicator:
    """Collectives by gloo, on tensors in memory."""

    name = "gloo"
    capturable = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_reduce, in place."""
        dist.all_reduce(x, group=self._group)
        return x

    def one_shot_sum(self, num_bytes: int, dtype: torch.dtype) -> None:
        """Communicator.one_shot_sum."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_gather."""
        gathered = x.new_empty((self._group.size(), *x.shape))
        dist.all_gather(list(gathered.unbind(0)), x.contiguous(), group=self._group)
        return gathered

    def all_reduce_min(self, numbers: list[int]) -> list[int]:
        """Communicator.all_reduce_min."""
        smallest = torch.tensor(numbers)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=self._group)
        return [int(n) for n in smallest.tolist()]

    def close(self, *, failed: bool = False) -> None:
        """Communicator.close."""
        dist.destroy_process_group(self._group)
