"""Weights and inputs in float8 (e4m3): a scale for each output and for each token, sums in fp32.

Checkpoints with one scale for a whole matrix are the same with equal scales, so that matrices that
are merged may differ in theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from kvasir.models.quantization import Activations, Quantization, Scales
from kvasir_engine.device.float8 import FP8, FP8_MAX
from kvasir_engine.kernels.quantized_rows import QuantizedRows, quantized_by_torch
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.quantization.fp8_weights import fill_fp8_randomly, prepared
from kvasir_engine.quantization.linear_method import ALL, Input, LinearLayer, LinearMethod, Stored

if TYPE_CHECKING:
    from kvasir_engine.kernels.gemm.skinny import Gate


DUMMY_INPUT = 8.0
"""Largest input that models without weights are quantised for."""


class Fp8Linear(LinearMethod):
    """`weight` float8 [outputs, inputs], `weight_scale` fp32 [outputs, 1], and `input_scale` fp32
    [1] where inputs are quantised by a number of the checkpoint."""

    def __init__(self, quantization: Quantization) -> None:
        """`quantization`: float8 by tensor or channel, as checkpoints have it or online."""
        self._online = quantization.online
        self._single = quantization.scales == Scales.TENSOR and not self._online
        self._static = quantization.activations == Activations.STATIC
        self.quantizes_tokens = not self._static

    def create(self, layer: LinearLayer) -> None:
        """LinearMethod.create."""
        weight = torch.empty(layer.local_outputs, layer.local_inputs, dtype=FP8)
        scales = torch.empty(layer.local_outputs, 1, dtype=torch.float32)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.weight_scale = nn.Parameter(scales, requires_grad=False)
        if self._static:
            scale = torch.zeros(1, dtype=torch.float32)
            layer.input_scale = nn.Parameter(scale, requires_grad=False)

    def stored(self, layer: LinearLayer) -> Sequence[Stored]:
        """LinearMethod.stored."""
        weight, scales = layer.weight.data, layer.weight_scale.data
        if self._online:

            def quantize(rows: slice, read: torch.Tensor) -> None:
                fused = fused_ops(read.device)
                by = quantized_by_torch if fused is None else fused.quantize_rows
                quantized = by(read, None)
                weight[rows].copy_(quantized.values)
                scales[rows].copy_(quantized.scales[:, None])

            return [Stored("weight", weight, inputs_dim=1, store=quantize)]

        def spread(rows: slice, read: torch.Tensor) -> None:
            scales[rows] = read.flatten().to(scales)

        stored = [
            Stored("weight", weight, inputs_dim=1),
            Stored(
                "weight_scale",
                scales,
                store=spread if self._single else None,
                single=self._single,
            ),
        ]
        if self._static:
            scale = layer.input_scale.data

            def largest(_: slice, read: torch.Tensor) -> None:
                torch.maximum(scale, read.flatten().to(scale), out=scale)

            # One for each matrix, as there are rows of `scales`; merged, they share the largest.
            stored.append(Stored("input_scale", scales, store=largest, single=True))
        return stored

    def prepare(self, layer: LinearLayer, x: Input) -> Input:
        """LinearMethod.prepare."""
        if isinstance(x, QuantizedRows):
            return x
        scale = layer.input_scale if self._static else None
        fused = fused_ops(x.device)
        return quantized_by_torch(x, scale) if fused is None else fused.quantize_rows(x, scale)

    def apply(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, rows: slice = ALL
    ) -> torch.Tensor:
        """LinearMethod.apply."""
        quantized, weight, scales = _operands(layer, x)
        if rows is not ALL:
            weight, scales = weight[rows], scales[rows]
        fused = fused_ops(x.device)
        if fused is not None:
            given = quantized, weight, scales, bias
            product: torch.Tensor = fused.fp8.fp8_linear(*given, layer.dtype)
            return product
        out = (quantized.values.float() @ weight.float().t()) * quantized.scales[:, None] * scales
        return (out if bias is None else out + bias.float()).to(layer.dtype)

    def scales(self, layer: LinearLayer) -> torch.Tensor | None:
        """LinearMethod.scales."""
        return layer.weight_scale.flatten()

    def parts(self, layer: LinearLayer, x: Input, bias: torch.Tensor | None) -> torch.Tensor | None:
        """LinearMethod.parts."""
        fused = fused_ops(x.device)
        if fused is None:
            return None
        out: torch.Tensor | None = fused.fp8.fp8_parts(*_operands(layer, x), bias)
        return out

    def gated(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, gate: Gate
    ) -> torch.Tensor | None:
        """LinearMethod.gated."""
        fused = fused_ops(x.device)
        if fused is None:
            return None
        out: torch.Tensor | None = fused.fp8.fp8_gated(
            *_operands(layer, x), bias, gate, layer.dtype
        )
        return out

    def fill_randomly(self, layer: LinearLayer, generator: torch.Generator) -> None:
        """LinearMethod.fill_randomly."""
        fill_fp8_randomly(layer, generator)
        if self._static:
            layer.input_scale.data.fill_(DUMMY_INPUT / FP8_MAX)


def _operands(layer: LinearLayer, x: Input) -> tuple[QuantizedRows, torch.Tensor, torch.Tensor]:
    return prepared(x), layer.weight, layer.weight_scale.flatten()
