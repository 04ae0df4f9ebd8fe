"""The activation of a gated MLP in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options

COLUMNS = 2048
"""Outputs of one program."""


@triton.jit
def _silu_mul(x_ptr, out_ptr, SIZE: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < SIZE
    begin(PDL)
    gate = tl.load(x_ptr + token * 2 * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * 2 * SIZE + SIZE + at, mask=inside, other=0.0)
    # Rounded between the two, as one after the other would be.
    active = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    tl.store(out_ptr + token * SIZE + at, active * up, mask=inside)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of contiguous x [tokens, 2 n], whose first half is the gate: [tokens, n]."""
    tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty((tokens, size), dtype=x.dtype, device=x.device)
    if tokens:
        columns = min(COLUMNS, triton.next_power_of_2(size))
        grid = (tokens, triton.cdiv(size, columns))
        _silu_mul[grid](x, out, SIZE=size, COLUMNS=columns, **launch_options(x.device))
    return out
