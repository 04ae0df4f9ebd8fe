"""The way from a checkpoint's tensors to a layer's (sharded, merged) parameters.

A layer describes, for each checkpoint tensor it is made of, which part of that tensor goes where.
The loader then reads no more than those parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class WeightShard:
    """Part of a checkpoint tensor: `target` holds rows start .. start + target.shape[dim] of it
    along dim."""

    target: torch.Tensor
    dim: int = 0
    start: int = 0
    store: Callable[[torch.Tensor], None] | None = None
    """Put what was read into place, where that is more than a copy to `target`."""

    @property
    def stop(self) -> int:
        """End of the range, exclusive."""
        return self.start + self.target.shape[self.dim]


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """One tensor of the checkpoint: its whole shape, and the shards that this rank keeps."""

    shape: tuple[int, ...]
    shards: tuple[WeightShard, ...]

    @classmethod
    def whole(cls, target: torch.Tensor) -> WeightSlot:
        """Return the slot of a tensor that every rank keeps as it is."""
        return cls(tuple(target.shape), (WeightShard(target),))


@runtime_checkable
class Loadable(Protocol):
    """A layer with parameters of its own."""

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return the checkpoint tensors it is made of, by full name; `path` is the module's own."""
        ...


class WeightedModule(nn.Module):
    """A module whose parameters are in the checkpoint whole, under their own names."""

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return one slot a parameter."""
        return {
            f"{path}.{name}": WeightSlot.whole(p.data)
            for name, p in self.named_parameters(recurse=False)
        }


def model_slots(model: nn.Module) -> dict[str, WeightSlot]:
    """Return every checkpoint tensor that `model` is made of, by full name."""
    slots: dict[str, WeightSlot] = {}
    for path, module in model.named_modules():
        if isinstance(module, Loadable):
            slots.update(module.slots(path))
    return slots


def parameter(*shape: int) -> nn.Parameter:
    """Return an uninitialised weight in the default dtype, on the default device."""
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


_deferred = False


@contextmanager
def deferred_weights() -> Iterator[None]:
    """Have linear layers that are made within take no memory for their weights."""
    global _deferred
    _deferred = True
    try:
        yield
    finally:
        _deferred = False


def linear_weight(outputs: int, inputs: int) -> nn.Parameter:
    """Return an uninitialised weight of a linear layer, without memory where that is deferred."""
    if not _deferred:
        return parameter(outputs, inputs)
    return nn.Parameter(torch.empty(outputs, inputs, device="meta"), requires_grad=False)


def siblings(path: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the full names of modules beside the one at `path`."""
    parent = path.rpartition(".")[0]
    return (f"{parent}.{name}" if parent else name for name in names)
