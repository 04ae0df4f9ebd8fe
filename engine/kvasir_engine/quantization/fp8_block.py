"""Weights in float8 with a scale for each block of 128 x 128, inputs for each group of 128 of a
token: checkpoints of DeepSeek and Qwen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.quantized_rows import (
    GROUP,
    QuantizedRows,
    dequantized,
    grouped_by_torch,
    groups_of,
)
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.quantization.fp8_weights import fill_fp8_randomly, prepared
from kvasir_engine.quantization.linear_method import ALL, Input, LinearLayer, LinearMethod, Stored

if TYPE_CHECKING:
    pass


class Fp8BlockLinear(LinearMethod):
    """`weight` float8 [outputs, inputs] and `weight_scale` fp32 [outputs / 128, inputs / 128]."""

    def __init__(self, scale_name: str) -> None:
        """`scale_name`: ending of the scales' names in the checkpoint."""
        self._scale_name = scale_name

    def create(self, layer: LinearLayer) -> None:
        """LinearMethod.create."""
        outputs, inputs = layer.local_outputs, layer.local_inputs
        weight = torch.empty(outputs, inputs, dtype=FP8)
        scales = torch.empty(groups_of(outputs), groups_of(inputs), dtype=torch.float32)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.weight_scale = nn.Parameter(scales, requires_grad=False)

    def stored(self, layer: LinearLayer) -> Sequence[Stored]:
        """LinearMethod.stored."""
        return [
            Stored("weight", layer.weight.data, inputs_dim=1),
            Stored(self._scale_name, layer.weight_scale.data, inputs_dim=1, units=(GROUP, GROUP)),
        ]

    def prepare(self, layer: LinearLayer, x: Input) -> Input:
        """LinearMethod.prepare."""
        if isinstance(x, QuantizedRows):
            return x
        fused = fused_ops(x.device)
        return grouped_by_torch(x) if fused is None else fused.quantize_groups(x)

    def apply(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, rows: slice = ALL
    ) -> torch.Tensor:
        """LinearMethod.apply."""
        grouped, weight, scales = prepared(x), layer.weight.data, layer.weight_scale.data
        if rows is not ALL:
            weight, scales = weight[rows], scales[rows.start // GROUP : groups_of(rows.stop)]
        fused = fused_ops(x.device)
        if fused is not None:
            given = grouped, weight, scales, bias
            product: torch.Tensor = fused.fp8_block.block_linear(*given, layer.dtype)
            return product
        of_rows = scales.repeat_interleave(GROUP, 0)[: len(weight)]
        out = dequantized(grouped) @ dequantized(QuantizedRows(weight, of_rows)).t()
        return (out if bias is None else out + bias.float()).to(layer.dtype)

    def scales(self, layer: LinearLayer) -> torch.Tensor | None:
        """LinearMethod.scales."""
        return layer.weight_scale

    def fill_randomly(self, layer: LinearLayer, generator: torch.Generator) -> None:
        """LinearMethod.fill_randomly."""
        fill_fp8_randomly(layer, generator)
