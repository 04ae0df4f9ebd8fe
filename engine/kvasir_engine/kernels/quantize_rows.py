"""Rows to float8, each, or each group of its numbers, by its own largest number, or all by one that
is given."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.float8 import FP8, FP8_MAX
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.quantized_rows import GROUP, MIN_SCALE, QuantizedRows, groups_of

_MAX: tl.constexpr = tl.constexpr(FP8_MAX)
_MIN_SCALE: tl.constexpr = tl.constexpr(MIN_SCALE)


@triton.jit
def store_quantized(x, out_ptr, scale_ptr, row, inside, SIZE: tl.constexpr):
    """Store one row x [PADDED] of fp32 numbers, which are 0 behind the last, and its scale."""
    scale = tl.maximum(tl.max(tl.abs(x), 0) / _MAX, _MIN_SCALE)
    _store_divided(x, scale, out_ptr, scale_ptr, row, inside, SIZE)


@triton.jit
def _store_divided(x, scale, out_ptr, scale_ptr, row, inside, SIZE: tl.constexpr):
    values = tl.clamp(x / scale, -_MAX, _MAX).to(out_ptr.dtype.element_ty)
    numbers = tl.arange(0, x.shape[0])
    tl.store(out_ptr + row.to(tl.int64) * SIZE + numbers, values, mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _store_groups(x, out_ptr, scale_ptr, row, inside, SIZE: tl.constexpr, GROUP: tl.constexpr):
    """Store one row x [PADDED], which has whole groups, each with its scale."""
    groups: tl.constexpr = x.shape[0] // GROUP
    x = tl.reshape(x, (groups, GROUP))
    scales = tl.maximum(tl.max(tl.abs(x), 1) / _MAX, _MIN_SCALE)
    values = tl.clamp(x / scales[:, None], -_MAX, _MAX).to(out_ptr.dtype.element_ty)
    values = tl.reshape(values, (groups * GROUP,))
    numbers, group = tl.arange(0, groups * GROUP), tl.arange(0, groups)
    tl.store(out_ptr + row.to(tl.int64) * SIZE + numbers, values, mask=inside)
    count: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    tl.store(scale_ptr + row.to(tl.int64) * count + group, scales, mask=group < count)


@triton.jit
def _quantize_groups(
    x_ptr, out_ptr, scale_ptr, x_stride,
    SIZE: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, numbers = tl.program_id(0), tl.arange(0, PADDED)
    inside = numbers < SIZE
    begin(PDL)
    x = tl.load(x_ptr + row.to(tl.int64) * x_stride + numbers, mask=inside, other=0.0)
    _store_groups(x.to(tl.float32), out_ptr, scale_ptr, row, inside, SIZE, GROUP)


@triton.jit
def _quantize_rows(
    x_ptr, out_ptr, scale_ptr, given_ptr, x_stride,
    SIZE: tl.constexpr, PADDED: tl.constexpr, GIVEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, numbers = tl.program_id(0), tl.arange(0, PADDED)
    inside = numbers < SIZE
    begin(PDL)
    x = tl.load(x_ptr + row.to(tl.int64) * x_stride + numbers, mask=inside, other=0.0)
    x = x.to(tl.float32)
    if GIVEN:
        _store_divided(x, tl.load(given_ptr), out_ptr, scale_ptr, row, inside, SIZE)
    else:
        store_quantized(x, out_ptr, scale_ptr, row, inside, SIZE)


def empty_rows(tokens: int, size: int, device: torch.device) -> QuantizedRows:
    """Return rows that a kernel is to fill."""
    values = torch.empty((tokens, size), dtype=FP8, device=device)
    return QuantizedRows(values, torch.empty(tokens, dtype=torch.float32, device=device))


def warps_of(size: int) -> int:
    """Return the warps of a program that has a whole row."""
    return 4 if size <= 2048 else 8 if size <= 8192 else 16


def quantize_rows(x: torch.Tensor, scale: torch.Tensor | None = None) -> QuantizedRows:
    """Return x [tokens, n], whose rows may be apart, in float8: all divided by `scale` [1], or each
    row by what makes its largest number float8's largest."""
    tokens, size = x.shape
    rows = empty_rows(tokens, size, x.device)
    if tokens:
        _quantize_rows[(tokens,)](
            x,
            *rows,
            x if scale is None else scale,
            x.stride(0),
            SIZE=size,
            PADDED=triton.next_power_of_2(size),
            GIVEN=scale is not None,
            num_warps=warps_of(size),
            **launch_options(x.device),
        )
    return rows


def quantize_groups(x: torch.Tensor) -> QuantizedRows:
    """Return x [tokens, n], whose rows may be apart, in float8, a scale for each group of a row."""
    tokens, size = x.shape
    values = torch.empty((tokens, size), dtype=FP8, device=x.device)
    scales = torch.empty((tokens, groups_of(size)), dtype=torch.float32, device=x.device)
    if tokens:
        _quantize_groups[(tokens,)](
            x,
            values,
            scales,
            x.stride(0),
            SIZE=size,
            PADDED=max(GROUP, triton.next_power_of_2(size)),
            GROUP=GROUP,
            num_warps=warps_of(size),
            **launch_options(x.device),
        )
    return QuantizedRows(values, scales)
