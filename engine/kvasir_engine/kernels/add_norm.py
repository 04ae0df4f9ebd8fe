"""Norms and the additions before them in one pass over each token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.float8 import FP8
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.norm_parameters import NormParameters
from kvasir_engine.kernels.quantize_rows import empty_rows, store_quantized
from kvasir_engine.kernels.quantized_rows import QuantizedRows
from kvasir_engine.kernels.sum_of_parts import sum_of_parts


@triton.jit
def _normed(x, weight, bias, eps, inside, SIZE: tl.constexpr, CENTRED: tl.constexpr):
    """Norm of one token's numbers x [PADDED], which are 0 behind the last."""
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, 0) / SIZE, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / SIZE + eps)
    normed = x * scale * weight
    if CENTRED:
        normed += bias
    return normed


@triton.jit(do_not_specialize=["tokens"])
def _add_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    post_ptr,
    normed_ptr,
    scale_ptr,
    total_ptr,
    eps,
    post_eps,
    tokens,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    OFFSET: tl.constexpr,
    PARTS: tl.constexpr,
    POST: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    CENTRED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    PDL: tl.constexpr,
):
    numbers = tl.arange(0, PADDED)
    inside = numbers < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + numbers
    if NORM:
        weight = tl.load(weight_ptr + numbers, mask=inside, other=0.0).to(tl.float32) + OFFSET
    if POST:
        post = tl.load(post_ptr + numbers, mask=inside, other=0.0).to(tl.float32) + OFFSET
    bias = 0.0
    if CENTRED:
        bias = tl.load(bias_ptr + numbers, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        # Of a kernel before the one before: x lies between.
        residual = tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    begin(PDL)
    dtype = total_ptr.dtype.element_ty
    x = sum_of_parts(x_ptr + at, inside, tokens.to(tl.int64) * SIZE, PARTS)
    # Rounded to the model's type wherever separate kernels would round.
    x = x.to(dtype).to(tl.float32)
    if POST:
        x = _normed(x, post, 0.0, post_eps, inside, SIZE, False).to(dtype).to(tl.float32)
    if HAS_RESIDUAL:
        x = (x + residual).to(dtype).to(tl.float32)
    if HAS_RESIDUAL or POST or PARTS > 0:
        tl.store(total_ptr + at, x.to(dtype), mask=inside)
    if NORM:
        normed = _normed(x, weight, bias, eps, inside, SIZE, CENTRED)
        if QUANTIZED:
            normed = tl.where(inside, normed.to(dtype).to(tl.float32), 0.0)
            store_quantized(normed, normed_ptr, scale_ptr, tl.program_id(0), inside, SIZE)
        else:
            tl.store(normed_ptr + at, normed.to(dtype), mask=inside)


def add_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormParameters | None,
    *,
    post: NormParameters | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(total), total) of contiguous [tokens, size], where total is x + residual, or with
    `post`, an RMS norm, post(x) + residual.

    x may be parts [parts, tokens, size] in fp32, whose sum it is. Without anything to add or norm
    before it, the total is x itself; without a norm the first is the total.
    """
    total = _total_of(x, residual, norm, post)
    normed = total if norm is None else torch.empty_like(total)
    _launch(x, residual, norm, post, (normed, normed), total)
    return normed, total


def add_norm_rows(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormParameters,
    *,
    post: NormParameters | None = None,
) -> tuple[QuantizedRows, torch.Tensor]:
    """`add_norm`, with the norm in float8, each token by its own largest number."""
    total = _total_of(x, residual, norm, post)
    rows = empty_rows(total.shape[0], total.shape[1], x.device)
    _launch(x, residual, norm, post, rows, total)
    return rows, total


def _total_of(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormParameters | None,
    post: NormParameters | None,
) -> torch.Tensor:
    """Place of the total: x itself where there is nothing to add or norm before it."""
    if residual is None and post is None and x.dim() == 2:
        return x
    known = norm or post
    dtype = x.dtype if known is None else known.weight.dtype
    return torch.empty(x.shape[-2:], dtype=dtype, device=x.device)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormParameters | None,
    post: NormParameters | None,
    normed: tuple[torch.Tensor, torch.Tensor],
    total: torch.Tensor,
) -> None:
    parts = len(x) if x.dim() == 3 else 0
    tokens, size = total.shape
    if not tokens:
        return
    known = norm or post
    bias = None if norm is None else norm.bias
    _add_norm[(tokens,)](
        x,
        _or(residual, x),
        x if norm is None else norm.weight,
        _or(bias, x),
        x if post is None else post.weight,
        *normed,
        total,
        0.0 if norm is None else norm.eps,
        0.0 if post is None else post.eps,
        tokens,
        SIZE=size,
        PADDED=triton.next_power_of_2(size),
        OFFSET=0.0 if known is None else known.offset,
        PARTS=parts,
        POST=post is not None,
        HAS_RESIDUAL=residual is not None,
        NORM=norm is not None,
        CENTRED=bias is not None,
        QUANTIZED=normed[0].dtype == FP8,
        num_warps=8 if size > 2048 or parts else 4,
        **launch_options(x.device),
    )


def _or(tensor: torch.Tensor | None, instead: torch.Tensor) -> torch.Tensor:
    """A pointer for the kernel: that of `instead`, which it does not read, where there is none."""
    return instead if tensor is None else tensor
