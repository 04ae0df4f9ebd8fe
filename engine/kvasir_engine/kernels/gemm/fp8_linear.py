"""Linear layers in float8: weights by output, inputs by token, sums in fp32.

The skinny kernel computes few tokens, as `skinny_table.py` has measured, and cuBLAS or CUTLASS
(`torch._scaled_mm`) the others.
"""

from __future__ import annotations

from functools import cache

import torch

from kvasir_engine.kernels.gemm.skinny import Gate, skinny_fp8_linear, skinny_fp8_parts_of
from kvasir_engine.kernels.gemm.skinny_table import fp8_tuning
from kvasir_engine.kernels.quantized_rows import QuantizedRows

_SCALED_BY_ROW = ((9, 0), (10, 0))
"""Compute capabilities for which `torch._scaled_mm` takes a scale for each row."""

_MULTIPLE = 16
"""Sizes that `torch._scaled_mm` takes are multiples of this."""


def fp8_linear(
    x: QuantizedRows,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x [tokens, in] times weight [out, in] transposed and scales [out], plus bias, in `dtype`."""
    tokens = len(x.values)
    tuning = fp8_tuning(tokens, weight, "plain")
    if tuning is not None:
        return skinny_fp8_linear(x, weight, scales, bias, tuning, dtype=dtype)
    if not tokens:
        return torch.empty((0, len(weight)), dtype=dtype, device=x.device)
    out = scaled_mm(x, weight, scales, dtype)
    return out if bias is None else out.add_(bias)


def fp8_gated(
    x: QuantizedRows,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate,
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """gate(first half of outputs) * second half, where the skinny kernel is faster, else None."""
    tuning = fp8_tuning(len(x.values), weight, "gated")
    if tuning is None:
        return None
    return skinny_fp8_linear(x, weight, scales, bias, tuning, dtype=dtype, gate=gate)


def fp8_parts(
    x: QuantizedRows, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """fp32 parts [parts, tokens, out], which the next kernel sums, where that is faster."""
    tuning = fp8_tuning(len(x.values), weight, "parts")
    return None if tuning is None else skinny_fp8_parts_of(x, weight, scales, bias, tuning)


def scaled_mm(
    x: QuantizedRows, weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """`fp8_linear` by the library, without a bias, for at least one token."""
    if weight.shape[0] % _MULTIPLE or weight.shape[1] % _MULTIPLE:
        sums = x.values.float() @ weight.float().t()
        return (sums * x.scales[:, None] * scales).to(dtype)
    if _by_row(x.device):
        scaled = x.scales[:, None], scales[None]
        return torch._scaled_mm(
            x.values, weight.t(), *scaled, out_dtype=torch.bfloat16, use_fast_accum=True
        ).to(dtype)
    one = torch.ones((), device=x.device)
    out = torch._scaled_mm(x.values, weight.t(), one, one, out_dtype=torch.bfloat16)
    return (out * x.scales[:, None] * scales).to(dtype)


@cache
def _by_row(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) in _SCALED_BY_ROW
