"""The activations of gated MLPs in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.quantize_rows import empty_rows, store_quantized, warps_of
from kvasir_engine.kernels.quantized_rows import QuantizedRows

COLUMNS = 2048
"""Outputs of one program."""


@triton.jit
def tanh(x):
    """tanh that neither overflows nor loses small numbers to a difference of large ones."""
    size = tl.abs(x)
    shrunk = tl.exp(-2.0 * size)
    large = (1.0 - shrunk) / (1.0 + shrunk)
    square = x * x
    small = size * (1.0 - square * (0.33333333 - square * (0.13333333 - square * 0.053968254)))
    value = tl.where(size < 0.1, small, large)
    return tl.where(x < 0, -value, value)


@triton.jit
def activated(gate, GELU: tl.constexpr):
    """gelu, approximated by tanh, or silu of fp32 numbers."""
    if GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = 0.5 * gate * (1.0 + tanh(inner))
    else:
        active = gate / (1.0 + tl.exp(-gate))
    return active


@triton.jit
def _gated(
    x_ptr, out_ptr,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < SIZE
    begin(PDL)
    gate = tl.load(x_ptr + token * 2 * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * 2 * SIZE + SIZE + at, mask=inside, other=0.0)
    # Rounded between the two, as one after the other would be.
    active = activated(gate, GELU)
    tl.store(out_ptr + token * SIZE + at, active.to(up.dtype) * up, mask=inside)


@triton.jit
def _gated_rows(
    x_ptr, out_ptr, scale_ptr,
    SIZE: tl.constexpr, PADDED: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0), tl.arange(0, PADDED)
    inside = at < SIZE
    begin(PDL)
    x_ptr += row.to(tl.int64) * 2 * SIZE
    gate = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + SIZE + at, mask=inside, other=0.0)
    out = activated(gate, GELU).to(up.dtype) * up
    store_quantized(out.to(tl.float32), out_ptr, scale_ptr, row, inside, SIZE)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of contiguous x [tokens, 2 n], whose first half is the gate: [tokens, n]."""
    return _launch(x, gelu=False)


def gelu_mul(x: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up of x as for `silu_mul`, with the approximation of gelu by tanh."""
    return _launch(x, gelu=True)


def gated_rows(x: torch.Tensor, *, gelu: bool) -> QuantizedRows:
    """`silu_mul` or `gelu_mul` of x, in float8, each row by its own largest number."""
    tokens, size = x.shape[0], x.shape[1] // 2
    rows = empty_rows(tokens, size, x.device)
    if tokens:
        _gated_rows[(tokens,)](
            x,
            *rows,
            SIZE=size,
            PADDED=triton.next_power_of_2(size),
            GELU=gelu,
            num_warps=warps_of(size),
            **launch_options(x.device),
        )
    return rows


def _launch(x: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty((tokens, size), dtype=x.dtype, device=x.device)
    if tokens:
        columns = min(COLUMNS, triton.next_power_of_2(size))
        grid = (tokens, triton.cdiv(size, columns))
        _gated[grid](x, out, SIZE=size, COLUMNS=columns, GELU=gelu, **launch_options(x.device))
    return out
