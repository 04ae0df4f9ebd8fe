"""Soft caps of logits in one pass: cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118, section 2)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.silu_mul import tanh

COLUMNS = 4096
"""Logits of one program."""


@triton.jit(do_not_specialize=["count"])
def _soft_cap(x_ptr, out_ptr, count, cap, COLUMNS: tl.constexpr, PDL: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < count
    begin(PDL)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, cap * tanh(x / cap), mask=inside)


def soft_cap(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """fp32 cap * tanh(logits / cap), in the shape of contiguous logits."""
    out = torch.empty_like(logits, dtype=torch.float32)
    if logits.numel():
        grid = (triton.cdiv(logits.numel(), COLUMNS),)
        options = launch_options(logits.device)
        _soft_cap[grid](logits, out, logits.numel(), cap, COLUMNS=COLUMNS, **options)
    return out
