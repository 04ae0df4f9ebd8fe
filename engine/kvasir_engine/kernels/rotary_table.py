"""Cosines and sines of a step's positions in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options


@triton.jit
def _rotary_table(
    positions_ptr,
    frequencies_ptr,
    cos_ptr,
    sin_ptr,
    scale,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, PADDED)
    inside = dim < DIM
    frequency = tl.load(frequencies_ptr + dim, mask=inside, other=0.0)
    begin(PDL)
    angle = tl.load(positions_ptr + token).to(tl.float32) * frequency
    cos, sin = tl.cos(angle) * scale, tl.sin(angle) * scale
    sin = tl.where(dim < DIM // 2, -sin, sin)
    at = token * DIM + dim
    tl.store(cos_ptr + at, cos.to(cos_ptr.dtype.element_ty), mask=inside)
    tl.store(sin_ptr + at, sin.to(sin_ptr.dtype.element_ty), mask=inside)


def rotary_table(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, its first half negated, of positions [tokens] times frequencies [dim] fp32,
    times `scale`: [tokens, 1, dim] of `dtype` each."""
    tokens, dim = len(positions), len(frequencies)
    cos, sin = torch.empty((2, tokens, 1, dim), dtype=dtype, device=positions.device).unbind(0)
    if tokens:
        _rotary_table[(tokens,)](
            positions,
            frequencies,
            cos,
            sin,
            scale,
            DIM=dim,
            PADDED=triton.next_power_of_2(dim),
            num_warps=1,
            **launch_options(positions.device),
        )
    return cos, sin
