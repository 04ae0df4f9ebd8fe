"""Residual addition and RMS normalisation in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options


@triton.jit
def _add_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    normed_ptr,
    total_ptr,
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    OFFSET: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32) + OFFSET
    begin(PDL)
    x = tl.load(x_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
        # Normalised as the next layer will see it: rounded to the model's type.
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row + at, total, mask=inside)
        x = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    normed = (x * scale * weight).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + row + at, normed, mask=inside)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual) * (weight + offset), x + residual) of contiguous [tokens, size].

    Without a residual the second is x itself.
    """
    tokens, size = x.shape
    normed = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    if tokens:
        _add_norm[(tokens,)](
            x,
            x if residual is None else residual,
            weight,
            normed,
            total,
            eps,
            SIZE=size,
            PADDED=triton.next_power_of_2(size),
            OFFSET=offset,
            HAS_RESIDUAL=residual is not None,
            num_warps=8 if size > 2048 else 4,
            **launch_options(x.device),
        )
    return normed, total
