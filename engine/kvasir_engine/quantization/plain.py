"""Weights in the model's own type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from kvasir_engine.kernels.quantized_rows import QuantizedRows
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.layers.weights import linear_weight
from kvasir_engine.quantization.linear_method import ALL, Input, LinearLayer, LinearMethod, Stored

if TYPE_CHECKING:
    from kvasir_engine.kernels.gemm.skinny import Gate

DUMMY_RANGE = 0.02
"""Largest random weight of a model without weights."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [tokens, in] times weight [out, in] transposed, plus bias [out]."""
    fused = fused_ops(x.device)
    out = None if fused is None else fused.skinny_gemm(x, weight, bias)
    if out is None and fused is not None and bias is None:
        out = fused.tuned_gemm(x, weight)
    return nn.functional.linear(x, weight, bias) if out is None else out


class PlainLinear(LinearMethod):
    """`weight` [outputs, inputs]."""

    def create(self, layer: LinearLayer) -> None:
        """LinearMethod.create."""
        layer.weight = linear_weight(layer.local_outputs, layer.local_inputs)

    def stored(self, layer: LinearLayer) -> Sequence[Stored]:
        """LinearMethod.stored."""
        return [Stored("weight", layer.weight.data, inputs_dim=1)]

    def apply(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, rows: slice = ALL
    ) -> torch.Tensor:
        """LinearMethod.apply."""
        return linear(_plain(x), layer.weight if rows is ALL else layer.weight[rows], bias)

    def parts(self, layer: LinearLayer, x: Input, bias: torch.Tensor | None) -> torch.Tensor | None:
        """LinearMethod.parts."""
        fused = fused_ops(x.device)
        if fused is None:
            return None
        return fused.skinny_parts(_plain(x), layer.weight, bias)

    def gated(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, gate: Gate
    ) -> torch.Tensor | None:
        """LinearMethod.gated."""
        fused = fused_ops(x.device)
        if fused is None:
            return None
        return fused.skinny_gemm(_plain(x), layer.weight, bias, gate=gate)

    def fill_randomly(self, layer: LinearLayer, generator: torch.Generator) -> None:
        """LinearMethod.fill_randomly."""
        weight = layer.weight.data
        weight.uniform_(-DUMMY_RANGE, DUMMY_RANGE, generator=generator)


def _plain(x: Input) -> torch.Tensor:
    if isinstance(x, QuantizedRows):
        raise TypeError("A layer with plain weights was given quantised inputs.")
    return x


PLAIN = PlainLinear()
