"""The part of kernels that add and norm that is one token's, and the arguments they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.norms.norm_parameters import NormParameters
from kvasir_engine.kernels.quantize_rows import store_quantized


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


@triton.jit
def add_and_norm(
    x, residual, weight, post, bias, normed_ptr, scale_ptr, total_ptr, token, inside, eps, post_eps,
    SIZE: tl.constexpr, POST: tl.constexpr, HAS_RESIDUAL: tl.constexpr, TOTAL: tl.constexpr,
    NORM: tl.constexpr, CENTRED: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Norm one token's x [PADDED] fp32 if `POST`, add the residual if there is one, and store the
    total, if it is not x, and its norm."""
    dtype = total_ptr.dtype.element_ty
    at = token.to(tl.int64) * SIZE + tl.arange(0, x.shape[0])
    # Rounded to the model's type wherever separate kernels would round.
    x = x.to(dtype).to(tl.float32)
    if POST:
        x = _normed(x, post, 0.0, post_eps, inside, SIZE, False).to(dtype).to(tl.float32)
    if HAS_RESIDUAL:
        x = (x + residual).to(dtype).to(tl.float32)
    if TOTAL:
        tl.store(total_ptr + at, x.to(dtype), mask=inside)
    if NORM:
        normed = _normed(x, weight, bias, eps, inside, SIZE, CENTRED)
        if QUANTIZED:
            normed = tl.where(inside, normed.to(dtype).to(tl.float32), 0.0)
            store_quantized(normed, normed_ptr, scale_ptr, token, inside, SIZE)
        else:
            tl.store(normed_ptr + at, normed.to(dtype), mask=inside)


@triton.jit
def norm_weights(
    weight_ptr, bias_ptr, post_ptr, inside,
    PADDED: tl.constexpr, OFFSET: tl.constexpr, NORM: tl.constexpr, POST: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """(weight, post's weight, bias) of fp32 numbers [PADDED]; 0 for what there is not."""
    numbers = tl.arange(0, PADDED)
    weight, post, bias = 0.0, 0.0, 0.0
    if NORM:
        weight = tl.load(weight_ptr + numbers, mask=inside, other=0.0).to(tl.float32) + OFFSET
    if POST:
        post = tl.load(post_ptr + numbers, mask=inside, other=0.0).to(tl.float32) + OFFSET
    if CENTRED:
        bias = tl.load(bias_ptr + numbers, mask=inside, other=0.0).to(tl.float32)
    return weight, post, bias


@dataclass(frozen=True, slots=True)
class AddNorm:
    """Arguments of a kernel that adds and norms."""

    x: torch.Tensor
    """[tokens, size], or fp32 [parts, tokens, size]."""
    residual: torch.Tensor | None
    norm: NormParameters | None
    post: NormParameters | None
    normed: tuple[torch.Tensor, torch.Tensor]
    """Places of the norm and, where it is quantised, of its scales."""
    total: torch.Tensor

    @property
    def pointers(self) -> tuple[torch.Tensor, ...]:
        """Return what kernels read and write; x for what they do not read."""
        norm, post, x = self.norm, self.post, self.x
        return (
            x,
            _or(self.residual, x),
            x if norm is None else norm.weight,
            x if norm is None else _or(norm.bias, x),
            x if post is None else post.weight,
            *self.normed,
            self.total,
        )

    @property
    def eps(self) -> tuple[float, float]:
        """Return the norm's epsilon and `post`'s."""
        norm, post = self.norm, self.post
        return 0.0 if norm is None else norm.eps, 0.0 if post is None else post.eps

    @property
    def options(self) -> dict[str, Any]:
        """Return the constants of a launch."""
        known, size = self.norm or self.post, self.total.shape[1]
        parts = len(self.x) if self.x.dim() == 3 else 0
        return {
            "SIZE": size,
            "PADDED": triton.next_power_of_2(size),
            "OFFSET": 0.0 if known is None else known.offset,
            "PARTS": parts,
            "POST": self.post is not None,
            "HAS_RESIDUAL": self.residual is not None,
            "NORM": self.norm is not None,
            "CENTRED": self.norm is not None and self.norm.bias is not None,
            "QUANTIZED": self.normed[0].dtype == FP8,
            "num_warps": 8 if size > 2048 or parts else 4,
        }


def _or(tensor: torch.Tensor | None, instead: torch.Tensor) -> torch.Tensor:
    return instead if tensor is None else tensor
