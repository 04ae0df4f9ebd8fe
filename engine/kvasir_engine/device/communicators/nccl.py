"""Collectives of GPUs, by NCCL."""

from __future__ import annotations

import ctypes
import logging
import threading
from functools import partial

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0


def keep_for_ever(thing: object) -> None:
    """Never free `thing`, not even at the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class NcclCommunicator:
    """Collectives by NCCL, on tensors of this rank's GPU."""

    name = "NCCL"
    capturable = True

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self.device = device

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_reduce, in place where `x` is contiguous."""
        x = x.contiguous()
        dist.all_reduce(x, group=self.group)
        return x

    def one_shot_sum(self, num_bytes: int, dtype: torch.dtype) -> None:
        """Communicator.one_shot_sum."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_gather."""
        gathered = x.new_empty((self.size, *x.shape))
        dist.all_gather_into_tensor(gathered.flatten(), x.contiguous().flatten(), group=self.group)
        return gathered

    def all_reduce_min(self, numbers: list[int]) -> list[int]:
        """Communicator.all_reduce_min."""
        smallest = torch.tensor(numbers, device=self.device)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=self.group)
        return [int(n) for n in smallest.tolist()]

    def close(self, *, failed: bool = False) -> None:
        """Communicator.close, without a word to the other ranks.

        NCCL waits for graphs that were captured with it: they have to be freed before. For what
        else it may wait nobody does longer than CLOSE_SECONDS. After a failure all stays as it is.
        The group is never freed: that joins threads of torch's, and is suspected of a hang that
        was seen on two H100.
        """
        keep_for_ever(self)
        if failed:
            return
        abort = partial(dist.distributed_c10d._abort_process_group, self.group)
        closing = threading.Thread(target=abort, name="nccl-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("NCCL does not end: it is left as it is.")
