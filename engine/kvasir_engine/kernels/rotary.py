"""Rotates queries and keys in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rotate(
    x_ptr,
    cos_ptr,
    sin_ptr,
    stride,
    HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED_HALF)
    own = at < HALF
    inside = (head < HEADS)[:, None] & own[None, :]
    low_ptr = x_ptr + token * stride + head[:, None] * DIM + at[None, :]
    low = tl.load(low_ptr, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(low_ptr + HALF, mask=inside, other=0.0).to(tl.float32)
    table = token * 2 * HALF + at
    cos_low = tl.load(cos_ptr + table, mask=own, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos_ptr + table + HALF, mask=own, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(sin_ptr + table, mask=own, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(sin_ptr + table + HALF, mask=own, other=0.0).to(tl.float32)[None, :]
    turned_low = low * cos_low + high * sin_low
    turned_high = high * cos_high + low * sin_high
    tl.store(low_ptr, turned_low.to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(low_ptr + HALF, turned_high.to(x_ptr.dtype.element_ty), mask=inside)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [tokens, heads, head_dim], whose first rotary_dim channels are rotated in place.

    cos and sin [tokens, 1, rotary_dim], contiguous, the first half of sin negated; heads lie one
    after the other, tokens may lie apart.
    """
    tokens, heads, dim = x.shape
    half = cos.shape[-1] // 2
    if tokens:
        _rotate[(tokens,)](
            x,
            cos,
            sin,
            x.stride(0),
            HEADS=heads,
            PADDED_HEADS=triton.next_power_of_2(heads),
            DIM=dim,
            HALF=half,
            PADDED_HALF=triton.next_power_of_2(half),
        )
    return x
