"""Methods by which linear layers store, load and multiply weights; one file a scheme beside this
one.

A layer (`layers/linear.py`) knows its sizes, its shard and its names in the checkpoint; its method
knows formats. Layers are built with the plain method, or, when the model is quantised, get theirs
from `quantize_layers` before their weights take memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import nn

from kvasir_engine.kernels.int4.int4_weights import Int4Weight
from kvasir_engine.kernels.quantized_rows import QuantizedRows

if TYPE_CHECKING:
    from kvasir_engine.kernels.gemm.skinny import Gate

Input: TypeAlias = torch.Tensor | QuantizedRows
"""[tokens, inputs], in the model's type or as the kernel before has quantised it."""


ALL = slice(None)
"""All outputs."""
Store: TypeAlias = Callable[[slice, torch.Tensor], None]
"""Put what was read for these of a layer's outputs into place."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that a checkpoint has of each matrix of a layer, under a name with this ending."""

    name: str
    target: torch.Tensor
    """Its place, or `no_place` where `store` knows it: as it lies in the checkpoint, but for this
    rank's outputs and inputs alone."""
    inputs_dim: int | None = None
    """Dimension along which a layer that is sharded along its inputs has a shard of it."""
    outputs_dim: int | None = 0
    """The same for outputs; matrices that are merged follow one another along it."""
    store: Store | None = None
    """None copies what was read."""
    units: tuple[int, int] = (1, 1)
    """Outputs and inputs that share a number of it, or whose numbers are packed into one."""
    single: bool = False
    """True when the checkpoint has one number for the whole matrix, for all rows of `target`."""


def no_place(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Return a tensor on the device of `like` that has a shape and no memory for it."""
    return like.new_empty(()).expand(shape)


class LinearLayer(Protocol):
    """A layer as its method sees it: parameters go onto it, under names of the method's."""

    experts: int
    """Matrices that it holds one after another, of different inputs; 1 where it is no experts'."""
    local_inputs: int
    local_outputs: int
    dtype: torch.dtype
    weight: nn.Parameter
    weight_scale: nn.Parameter
    """Set by methods that have scales, as are the next by those that have them."""
    input_scale: nn.Parameter
    weight_zero: nn.Parameter | None
    input_groups: nn.Parameter | None
    input_order: nn.Parameter | None


class LinearMethod(Protocol):
    """Creates, loads and applies the weights of linear layers; has no state of a layer's own.

    Methods inherit from it what most of them have none of.
    """

    quantizes_tokens: bool = False
    """True when each token of the input is quantised by its own largest number, so that the kernel
    before may do it."""

    def create(self, layer: LinearLayer) -> None:
        """Give `layer` its parameters, uninitialised, on the default device."""

    def stored(self, layer: LinearLayer) -> Sequence[Stored]:
        """Return what a checkpoint holds for it, the bias apart."""
        ...

    def finish(self, layer: LinearLayer) -> None:
        """Do what can be done only when all of `stored` is in place. Raises ValueError, a sentence,
        where the parts do not belong together."""
        return

    def prepare(self, layer: LinearLayer, x: Input) -> Input:
        """Return x as the next three take it: quantised, where the weights are to be multiplied by
        quantised numbers."""
        return x

    def apply(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, rows: slice = ALL
    ) -> torch.Tensor:
        """Return x times the weight's `rows` transposed, plus bias: [tokens, outputs]."""
        ...

    def scales(self, layer: LinearLayer) -> torch.Tensor | None:
        """Return the weight's scales [local_outputs], for kernels that multiply by themselves."""
        return None

    def int4_weight(self, layer: LinearLayer) -> Int4Weight | None:
        """Return the weight in 4 bits, for such kernels; None where it is stored otherwise."""
        return None

    def parts(self, layer: LinearLayer, x: Input, bias: torch.Tensor | None) -> torch.Tensor | None:
        """Return fp32 [parts, tokens, local_outputs], the parts of that sum, where a kernel after
        the layer that sums them makes both faster, else None."""
        return None

    def gated(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, gate: Gate
    ) -> torch.Tensor | None:
        """Return gate(first half of outputs) * second half, where one kernel does it faster, else
        None."""
        return None

    def fill_randomly(self, layer: LinearLayer, generator: torch.Generator) -> None:
        """Fill the weight with small uniform numbers."""
