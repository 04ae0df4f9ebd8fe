"""Layouts of 4-bit weights in checkpoints: AutoAWQ's, GPTQ's and compressed-tensors'.

In each, a number stands for (number - zero point) x scale, and 8 numbers are an int32:

AWQ: `qweight` [inputs, outputs / 8], `qzeros` [groups, outputs / 8], `scales` [groups, outputs].

GPTQ: `qweight` [inputs / 8, outputs], `qzeros` and `scales` as AWQ's.

compressed-tensors: `weight_packed` [outputs, inputs / 8], `weight_zero_point` [outputs / 8,
groups], `weight_scale` [outputs, groups].

The lowest bits are the first number of eight, but for AWQ, which has them in the order 0, 2, 4, 6,
1, 3, 5, 7. GPTQ stores zero points less one. Symmetric ones are 8 and, where stored, not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvasir.models.quantization import Packing
from kvasir_engine.kernels.int4.int4_weights import NIBBLES, nibbles_of

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Nibble that holds each of eight outputs."""


@dataclass(frozen=True, slots=True)
class Int4Format:
    """Names, and the dimension of outputs in what a checkpoint stores; inputs have the other."""

    numbers: str
    zeros: str
    scales: str
    groups: str
    """Name of the group of each input, where inputs were quantised in another order."""
    outputs_dim: int
    packed_dim: int
    """Dimension of `numbers` along which eight are packed."""
    order: Sequence[int] = range(NIBBLES)
    zeros_less: int = 0
    """Number that stored zero points are less by."""

    @property
    def packs_outputs(self) -> bool:
        """True where eight outputs, not eight inputs, share an integer."""
        return self.packed_dim == self.outputs_dim

    def unpacked_numbers(self, read: torch.Tensor) -> torch.Tensor:
        """Return `numbers` as uint8 [outputs, inputs]."""
        apart = nibbles_of(read, self.packed_dim, self.order)
        return apart if self.outputs_dim == 0 else apart.t()

    def unpacked_zeros(self, read: torch.Tensor) -> torch.Tensor:
        """Return zero points as uint8 [groups, outputs]."""
        apart = nibbles_of(read, self.outputs_dim, self.order)
        zeros = (apart + self.zeros_less) & 15
        return zeros.t() if self.outputs_dim == 0 else zeros

    def unpacked_scales(self, read: torch.Tensor) -> torch.Tensor:
        """Return scales as [groups, outputs]."""
        return read.t() if self.outputs_dim == 0 else read


FORMATS = {
    Packing.AWQ: Int4Format("qweight", "qzeros", "scales", "g_idx", 1, 1, _AWQ_ORDER),
    Packing.GPTQ: Int4Format("qweight", "qzeros", "scales", "g_idx", 1, 0, zeros_less=1),
    Packing.COMPRESSED_TENSORS: Int4Format(
        "weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx", 0, 1
    ),
}
