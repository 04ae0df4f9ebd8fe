"""Collectives of GPUs that read each other's memory, by torch's symmetric memory.

Each rank has memory that the others map. Small tensors are summed by `one_shot_kernel.py`, or by
the kernel that norms the sum (`kernels/norms/all_reduce_norm.py`); larger ones are copied into a
buffer, of which torch's kernel makes the sum. That ends with an exchange of signals after the last
read, so the buffer may be written again by what follows on the stream. Ranks sum in rank order and
get the same bits. NCCL does what these operations cannot or do slower.
"""

from __future__ import annotations

import logging

import torch
import torch.distributed._symmetric_memory as symmetric_memory

from kvasir_engine.device.communicators.all_reduce_choice import (
    ALIGNMENT,
    SUMMED_DTYPES,
    AllReduce,
    buffer_bytes_for,
    choose_all_reduce,
    max_one_shot_bytes,
)
from kvasir_engine.device.communicators.nccl import NcclCommunicator, keep_for_ever
from kvasir_engine.device.communicators.one_shot_kernel import OneShotSum, region_bytes

log = logging.getLogger(__name__)

_TESTED_BYTES = (16, 4 << 10, 2 << 20)
"""Sizes that a start sums once: one of each alignment and algorithm."""


class SymmetricMemoryCommunicator:
    """All-reduces through a symmetric buffer, the rest by NCCL."""

    name = "symmetric memory"
    capturable = True

    def __init__(self, nccl: NcclCommunicator, step_bytes: int) -> None:
        """Allocate the buffer and map it; waits for the other ranks."""
        self._nccl = nccl
        self._group = nccl.group.group_name
        size, half = buffer_bytes_for(step_bytes), max_one_shot_bytes(nccl.size)
        every = size + region_bytes(half, nccl.size)
        memory = symmetric_memory.empty(every, dtype=torch.uint8, device=nccl.device)
        mapped = symmetric_memory.rendezvous(memory, self._group)
        self._buffer = memory[:size]
        memory[size:].zero_()
        # The others' regions are zero, too.
        nccl.all_reduce_min([0])
        bases = [mapped.get_buffer(rank, (every,), torch.uint8) for rank in range(nccl.size)]
        regions = tuple(base.data_ptr() + size for base in bases)
        self.one_shot = OneShotSum(regions, nccl.rank, half, nccl.device)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_reduce."""
        return self.all_reduce_by(self.choose(x), x)

    def choose(self, x: torch.Tensor) -> AllReduce:
        """Return the algorithm for `x`."""
        return self._choose(x.numel() * x.itemsize, x.dtype)

    def _choose(self, num_bytes: int, dtype: torch.dtype) -> AllReduce:
        ranks, buffer_bytes = self._nccl.size, len(self._buffer)
        return choose_all_reduce(num_bytes, dtype, ranks=ranks, buffer_bytes=buffer_bytes)

    def one_shot_sum(self, num_bytes: int, dtype: torch.dtype) -> OneShotSum | None:
        """Communicator.one_shot_sum."""
        return self.one_shot if self._choose(num_bytes, dtype) is AllReduce.ONE_SHOT else None

    def all_reduce_by(self, algorithm: AllReduce, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of `x`, by this algorithm."""
        x = x.contiguous()
        if algorithm is AllReduce.NCCL or x.data_ptr() % ALIGNMENT:
            return self._nccl.all_reduce(x)
        if algorithm is AllReduce.ONE_SHOT:
            return self.one_shot(x)
        buffer = self._buffer[: x.numel() * x.itemsize].view(x.dtype).view(x.shape)
        buffer.copy_(x)
        torch.ops.symm_mem.two_shot_all_reduce_out(buffer, "sum", self._group, x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Communicator.all_gather; few bytes as a sum with what the others leave at zero."""
        size, rank = self._nccl.size, self._nccl.rank
        total = size * x.numel() * x.itemsize
        if x.dtype not in SUMMED_DTYPES or total > max_one_shot_bytes(size):
            return self._nccl.all_gather(x)
        gathered = x.new_zeros((size, *x.shape))
        gathered[rank] = x
        return self.all_reduce(gathered)

    def all_reduce_min(self, numbers: list[int]) -> list[int]:
        """Communicator.all_reduce_min."""
        return self._nccl.all_reduce_min(numbers)

    def close(self, *, failed: bool = False) -> None:
        """Communicator.close. The buffer is never freed: that waits for the device."""
        keep_for_ever(self)
        self._nccl.close(failed=failed)

    def sums_correctly(self) -> bool:
        """Return True if sums of each algorithm are right here; all ranks call it."""
        ranks, right = self._nccl.size, True
        for num_bytes in _TESTED_BYTES:
            x = torch.full((num_bytes // 2,), self._nccl.rank + 1.0, dtype=torch.bfloat16)
            total = self.all_reduce(x.to(self._nccl.device))
            right &= bool((total == ranks * (ranks + 1) / 2).all())
        return right


def symmetric_memory_or_nccl(
    nccl: NcclCommunicator, step_bytes: int
) -> SymmetricMemoryCommunicator | NcclCommunicator:
    """Return symmetric memory's collectives where every rank can have them, NCCL's elsewhere."""
    if not _agreed(nccl, _reads_all_peers(nccl)):
        _say_why(nccl, "these GPUs cannot read each other's memory")
        return nccl
    # torch keeps the store of a group's name for ever, and names the next group alike.
    if not _agreed(nccl, not symmetric_memory.is_symm_mem_enabled_for_group(nccl.group.group_name)):
        _say_why(nccl, "this process had another group of GPUs open before")
        return nccl
    made = None
    try:
        made = SymmetricMemoryCommunicator(nccl, step_bytes)
    except (RuntimeError, AttributeError) as error:
        _say_why(nccl, str(error).partition("\n")[0])
    if not _agreed(nccl, made is not None) or made is None:
        return nccl
    if not _agreed(nccl, made.sums_correctly()):
        _say_why(nccl, "its sums are wrong here")
        return nccl
    return made


def _agreed(nccl: NcclCommunicator, here: bool) -> bool:
    return nccl.all_reduce_min([int(here)]) == [1]


def _reads_all_peers(nccl: NcclCommunicator) -> bool:
    others = [rank for rank in range(nccl.size) if rank != nccl.rank]
    return all(torch.cuda.can_device_access_peer(nccl.rank, other) for other in others)


def _say_why(nccl: NcclCommunicator, reason: str) -> None:
    if nccl.rank == 0:
        log.warning("All-reduces use NCCL, not torch's symmetric memory: %s.", reason)
