"""This process's place in the tensor-parallel group, and the collectives that layers call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from kvasir_engine.device.communicators.communicator import Communicator
from kvasir_engine.device.communicators.gloo import GlooCommunicator
from kvasir_engine.device.communicators.lone_rank import LoneRank
from kvasir_engine.device.communicators.nccl import NcclCommunicator

if TYPE_CHECKING:
    from kvasir_engine.device.communicators.one_shot_kernel import OneShotSum


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Rank `rank` of `size` processes that each hold a shard of every layer."""

    rank: int = 0
    size: int = 1
    communicator: Communicator | None = None
    expert_parallel: bool = False
    """Experts are whole and divided over the ranks, instead of each being sharded."""


_current = TensorParallel()


def tensor_parallel() -> TensorParallel:
    """Return this process's rank and size; rank 0 of 1 before `init_tensor_parallel`."""
    return _current


def init_tensor_parallel(
    rank: int,
    size: int,
    *,
    store: Store,
    device: torch.device,
    step_bytes: int = 0,
    expert_parallel: bool = False,
) -> None:
    """Join the group of `size` processes that share `store`. Blocks until all have joined.

    On CUDA `device` is this rank's own, by index. `step_bytes` are the hidden states' of the
    largest step.
    """
    global _current
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0 to {size - 1} for {size} processes, not {rank}")
    if size > 1:
        communicator = _join(rank, size, store, device, step_bytes)
        _current = TensorParallel(rank, size, communicator, expert_parallel)


def _join(
    rank: int, size: int, store: Store, device: torch.device, step_bytes: int
) -> Communicator:
    if device.type == "cpu":
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        return GlooCommunicator(_world())
    # Not at the top: a CPU needs none of it.
    from kvasir_engine.device.communicators.symmetric_memory import symmetric_memory_or_nccl

    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=device)
    return symmetric_memory_or_nccl(NcclCommunicator(_world(), device), step_bytes)


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    if world is None:
        raise RuntimeError("the process group that was just made is gone: a defect.")
    return world


def destroy_tensor_parallel(*, failed: bool = False) -> None:
    """Leave the group. Idempotent. `failed`: other ranks are gone."""
    global _current
    if _current.communicator is not None:
        _current.communicator.close(failed=failed)
    _current = TensorParallel()


@contextmanager
def as_lone_rank(size: int, *, expert_parallel: bool = False) -> Iterator[None]:
    """Be rank 0 of `size` within the body, without the others."""
    global _current
    before = _current
    if size > 1:
        _current = TensorParallel(0, size, LoneRank(size), expert_parallel)
    try:
        yield
    finally:
        _current = before


def collectives_capturable() -> bool:
    """Return True if steps with collectives can be captured as CUDA graphs."""
    communicator = _current.communicator
    return communicator is None or communicator.capturable


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of `x` over ranks, the same bits on each; may overwrite `x`."""
    communicator = _current.communicator
    return x if communicator is None else communicator.all_reduce(x)


def one_shot_sum(num_bytes: int, dtype: torch.dtype) -> OneShotSum | None:
    """Return what sums a tensor of this size and type over ranks inside a kernel that does more;
    None with one rank, or where `all_reduce` is faster or the only way."""
    communicator = _current.communicator
    return None if communicator is None else communicator.one_shot_sum(num_bytes, dtype)


def all_gather(x: torch.Tensor) -> torch.Tensor:
    """Return `x` [..., n] of every rank side by side, in rank order: [..., n * size], contiguous
    where there are several."""
    communicator = _current.communicator
    if communicator is None:
        return x
    # flatten() copies unless a view will do, as it does for n = 1; kernels want rows in order.
    return communicator.all_gather(x).movedim(0, -2).flatten(-2).contiguous()


def all_reduce_min(numbers: list[int]) -> list[int]:
    """Return the smallest of each number over ranks, the same list on all of them."""
    communicator = _current.communicator
    return numbers if communicator is None else communicator.all_reduce_min(numbers)


def wait_for_ranks() -> None:
    """Return when all ranks have called it."""
    all_reduce_min([0])


def divide(total: int, what: str) -> int:
    """Return this rank's equal share of `total`. Raises ValueError when it cannot be divided."""
    if total % _current.size:
        raise ValueError(
            f"{what} {total} cannot be divided over {_current.size} ranks;"
            f" choose a tensor-parallel-size that divides it"
        )
    return total // _current.size
