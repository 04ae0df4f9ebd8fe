"""Norms and the additions before them in one pass over each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.norms.all_reduce_norm import launch_all_reduce_norm
from kvasir_engine.kernels.norms.norm_parameters import NormParameters
from kvasir_engine.kernels.norms.norm_token import AddNorm, add_and_norm, norm_weights
from kvasir_engine.kernels.quantize_rows import empty_rows
from kvasir_engine.kernels.quantized_rows import QuantizedRows
from kvasir_engine.kernels.sum_of_parts import sum_of_parts

if TYPE_CHECKING:
    from kvasir_engine.device.communicators.one_shot_kernel import OneShotSum


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
    weight, post, bias = norm_weights(
        weight_ptr, bias_ptr, post_ptr, inside, PADDED, OFFSET, NORM, POST, CENTRED
    )
    residual = 0.0
    if HAS_RESIDUAL:
        # Of a kernel before the one before: x lies between.
        residual = tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    begin(PDL)
    x = sum_of_parts(x_ptr + at, inside, tokens.to(tl.int64) * SIZE, PARTS)
    total: tl.constexpr = HAS_RESIDUAL or POST or PARTS > 0
    add_and_norm(
        x, residual, weight, post, bias, normed_ptr, scale_ptr, total_ptr, tl.program_id(0), inside,
        eps, post_eps, SIZE, POST, HAS_RESIDUAL, total, NORM, CENTRED, QUANTIZED,
    )  # fmt: skip


def add_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormParameters | None,
    *,
    post: NormParameters | None = None,
    ranks: OneShotSum | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(total), total) of contiguous [tokens, size], where total is x + residual, or with
    `post`, an RMS norm, post(x) + residual.

    x may be parts [parts, tokens, size] in fp32, whose sum it is. With `ranks` it is this rank's
    share of at most `ranks.half_bytes`, and the ranks' sum is what is added. Without anything to
    add or norm before it, the total is x itself; without a norm the first is the total.
    """
    total = _total_of(x, residual, norm, post)
    normed = total if norm is None else torch.empty_like(total)
    _launch(AddNorm(x, residual, norm, post, (normed, normed), total), ranks)
    return normed, total


def add_norm_rows(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: NormParameters,
    *,
    post: NormParameters | None = None,
    ranks: OneShotSum | None = None,
) -> tuple[QuantizedRows, torch.Tensor]:
    """`add_norm`, with the norm in float8, each token by its own largest number."""
    total = _total_of(x, residual, norm, post)
    rows = empty_rows(total.shape[0], total.shape[1], x.device)
    _launch(AddNorm(x, residual, norm, post, rows, total), ranks)
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


def _launch(given: AddNorm, ranks: OneShotSum | None) -> None:
    tokens = len(given.total)
    if not tokens:
        return
    if ranks is not None:
        launch_all_reduce_norm(given, ranks)
        return
    _add_norm[(tokens,)](
        *given.pointers,
        *given.eps,
        tokens,
        **given.options,
        **launch_options(given.x.device),
    )
