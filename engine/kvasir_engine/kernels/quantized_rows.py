"""Quantised inputs of linear layers, as kernels hand them on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from kvasir_engine.device.float8 import FP8, FP8_MAX

MIN_SCALE = 1e-12
"""Scale of rows of zeros: any would do but 0."""


GROUP = 128
"""Inputs that share a scale where a row has several; so many outputs and inputs do of a weight."""


class QuantizedRows(NamedTuple):
    """Rows of numbers in float8, each row, or each GROUP of its numbers, times its own scale."""

    values: torch.Tensor
    """float8 e4m3 [tokens, inputs], contiguous."""
    scales: torch.Tensor
    """fp32 [tokens], or [tokens, groups]."""

    @property
    def device(self) -> torch.device:
        """Return the device that they are on."""
        return self.values.device


def quantized_by_torch(x: torch.Tensor, scale: torch.Tensor | None = None) -> QuantizedRows:
    """Return x [rows, n], all divided by `scale` [1], or each row by what makes its largest number
    float8's largest."""
    wide = x.float()
    if scale is None:
        scales = (wide.abs().amax(-1) / FP8_MAX).clamp(min=MIN_SCALE)
    else:
        scales = scale.repeat(len(x))
    return QuantizedRows(as_fp8(wide / scales[:, None]), scales)


def groups_of(size: int) -> int:
    """Return the number of groups of a row of `size` numbers."""
    return -(-size // GROUP)


def grouped_by_torch(x: torch.Tensor) -> QuantizedRows:
    """Return x [rows, n], each group divided by what makes its largest number float8's largest."""
    tokens, size = x.shape
    groups = groups_of(size)
    padded = nn.functional.pad(x.float(), (0, groups * GROUP - size))
    rows = quantized_by_torch(padded.view(tokens * groups, GROUP))
    values = rows.values.view(tokens, groups * GROUP)[:, :size].contiguous()
    return QuantizedRows(values, rows.scales.view(tokens, groups))


def dequantized(rows: QuantizedRows) -> torch.Tensor:
    """Return the numbers that rows stand for, in fp32."""
    values, scales = rows
    if scales.dim() == 1:
        return values.float() * scales[:, None]
    return values.float() * scales.repeat_interleave(GROUP, 1)[:, : values.shape[1]]


def as_fp8(x: torch.Tensor) -> torch.Tensor:
    """Return x rounded to float8; what is beyond its range becomes its largest number."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(FP8)
