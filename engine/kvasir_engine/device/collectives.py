"""This process's place in the tensor-parallel group, and the collectives that layers call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Rank `rank` of `size` processes that each hold a shard of every layer."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None


_current = TensorParallel()


def tensor_parallel() -> TensorParallel:
    """Return this process's rank and size; rank 0 of 1 before `init_tensor_parallel`."""
    return _current


def init_tensor_parallel(rank: int, size: int, *, backend: str, store: Store) -> None:
    """Join the group of `size` processes that share `store`. Blocks until all have joined."""
    global _current
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0 to {size - 1} for {size} processes, not {rank}")
    if size > 1:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        _current = TensorParallel(rank, size, dist.group.WORLD)


def destroy_tensor_parallel() -> None:
    """Leave the group. Idempotent."""
    global _current
    if _current.size > 1:
        dist.destroy_process_group(_current.group)
    _current = TensorParallel()


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of `x` over ranks, in place."""
    if _current.size > 1:
        dist.all_reduce(x, group=_current.group)
    return x


def all_gather(x: torch.Tensor) -> torch.Tensor:
    """Return `x` [..., n] of every rank side by side, in rank order: [..., n * size]."""
    if _current.size == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(_current.size)]
    dist.all_gather(parts, x.contiguous(), group=_current.group)
    return torch.cat(parts, dim=-1)


def all_reduce_min(numbers: list[int], device: torch.device) -> list[int]:
    """Return the smallest of each number over ranks, the same list on all of them."""
    if _current.size == 1:
        return numbers
    smallest = torch.tensor(numbers, device=device)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN, group=_current.group)
    return [int(n) for n in smallest.tolist()]


def divide(total: int, what: str) -> int:
    """Return this rank's equal share of `total`. Raises ValueError when it cannot be divided."""
    if total % _current.size:
        raise ValueError(
            f"{what} {total} cannot be divided over {_current.size} ranks;"
            f" choose a tensor-parallel-size that divides it"
        )
    return total // _current.size
