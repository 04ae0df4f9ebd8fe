"""Projection to attention: QK norm, rotation, and the new keys and values into the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvasir_engine.device.float8 import is_fp8
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.to_float8 import to_fp8
from kvasir_engine.kernels.sum_of_parts import sum_of_parts
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMS norms of each query's and key's channels: weights [head_dim], added to `offset`."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float
    offset: float


@triton.jit
def _normed(x, scale, q_weight_ptr, k_weight_ptr, channel, in_head, is_query, OFFSET: tl.constexpr):
    """Some channels [heads, channels] of heads, by their norm; rounded to the model's type, as a
    norm of its own would be."""
    q_weight = tl.load(q_weight_ptr + channel[None, :], mask=in_head, other=0.0)
    k_weight = tl.load(k_weight_ptr + channel[None, :], mask=in_head, other=0.0)
    weight = tl.where(is_query[:, None], q_weight, k_weight).to(tl.float32) + OFFSET
    return (x.to(tl.float32) * scale[:, None] * weight).to(x.dtype)


@triton.jit
def _store_rotated(ptr, head, first, second, a, b, mask, DIM: tl.constexpr):
    """Both channels of each pair, into heads [heads] of a token that begins at `ptr`."""
    at = ptr + head[:, None] * DIM
    tl.store(at + first[None, :], a, mask=mask)
    tl.store(at + second[None, :], b, mask=mask)


@triton.jit
def _store_qkv(
    x_ptr,
    cos_ptr,
    sin_ptr,
    q_weight_ptr,
    k_weight_ptr,
    slots_ptr,
    q_ptr,
    cache_ptr,
    x_stride,
    part_stride,
    value_offset,
    inverse_key,
    inverse_value,
    eps,
    FP8: tl.constexpr,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    ROTATED: tl.constexpr,
    AT_ONCE: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    is_query, is_value = head < HEADS, head >= HEADS + KV_HEADS
    # Channels in pairs that turn with each other; those past the rotated ones turn by nothing.
    pair = tl.arange(0, PAIRS)
    half: tl.constexpr = ROTATED // 2
    rest: tl.constexpr = (DIM - ROTATED) // 2
    first, second = pair, pair + half
    if rest > 0:
        first = tl.where(pair < half, pair, pair + half)
        second = first + tl.where(pair < half, half, rest)
    in_head = (pair < DIM // 2)[None, :]
    own = (head < HEADS + 2 * KV_HEADS)[:, None] & in_head
    row = x_ptr + token * x_stride + head[:, None] * DIM
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    raw_a = sum_of_parts(row + first[None, :], own, part_stride, PARTS).to(dtype)
    raw_b = sum_of_parts(row + second[None, :], own, part_stride, PARTS).to(dtype)
    a, b = raw_a, raw_b
    if NORMED:
        squares = a.to(tl.float32) * a.to(tl.float32) + b.to(tl.float32) * b.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(squares, 1) / DIM + eps)
        a = _normed(a, scale, q_weight_ptr, k_weight_ptr, first, in_head, is_query, OFFSET)
        b = _normed(b, scale, q_weight_ptr, k_weight_ptr, second, in_head, is_query, OFFSET)
    rotates = (pair < half)[None, :]
    table = token * ROTATED + half + pair[None, :]
    # Both halves of the table are the same but for the sign of the sine.
    cos = tl.load(cos_ptr + table, mask=rotates, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + table, mask=rotates, other=0.0).to(tl.float32)
    turned_a = a.to(tl.float32) * cos - b.to(tl.float32) * sin
    turned_b = b.to(tl.float32) * cos + a.to(tl.float32) * sin
    a = tl.where(is_value[:, None], raw_a, turned_a.to(raw_a.dtype))
    b = tl.where(is_value[:, None], raw_b, turned_b.to(raw_a.dtype))
    to_query = own & is_query[:, None]
    _store_rotated(q_ptr + token * HEADS * DIM, head, first, second, a, b, to_query, DIM)
    slot = tl.load(slots_ptr + token)
    kv_head = tl.where(is_value, head - KV_HEADS, head) - HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    to_key, to_value = own & is_key[:, None], own & is_value[:, None]
    if FP8:
        inverse = tl.where(is_value, inverse_value, inverse_key)[:, None]
        a, b = to_fp8(a, inverse), to_fp8(b, inverse)
    cached = cache_ptr + slot * KV_HEADS * DIM
    _store_rotated(cached, kv_head, first, second, a, b, to_key, DIM)
    _store_rotated(cached + value_offset, kv_head, first, second, a, b, to_value, DIM)


def store_qkv(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: QKNorm | None,
    cache: torch.Tensor,
    slots: torch.Tensor,
    heads: int,
    *,
    q: torch.Tensor | None = None,
    scales: KVScales = UNSCALED,
) -> torch.Tensor:
    """The rotated queries [tokens, heads, head_dim]; the rotated keys and the values go to `slots`.

    x [tokens, heads + 2 kv_heads, head_dim]: queries, keys and values, tokens may lie apart; or
    fp32 parts of them, [parts, ...], whose sums are rounded to the type of cos. cos and sin
    [tokens, 1, rotary_dim], both halves the same, of sin the first negated; cache [2, blocks,
    block_size, kv_heads, head_dim], by `scales` where it is of float8. The queries are put into
    contiguous `q` where it is given.
    """
    parts = len(x) if x.dim() == 4 else 1
    tokens, total, dim = x.shape[-3:]
    if q is None:
        q = torch.empty((tokens, heads, dim), dtype=cos.dtype, device=x.device)
    if not tokens:
        return q
    pairs = triton.next_power_of_2(dim // 2)
    # Few tokens: a program a few heads, so that many multiprocessors share the work.
    at_once = 4 if tokens <= 64 else max(1, min(32, 2048 // pairs))
    _store_qkv[(tokens, triton.cdiv(total, at_once))](
        x,
        cos,
        sin,
        x if norm is None else norm.query,
        x if norm is None else norm.key,
        slots,
        q,
        cache,
        x.stride(-3),
        x.stride(0),
        cache.stride(0),
        1.0 / scales.key,
        1.0 / scales.value,
        0.0 if norm is None else norm.eps,
        FP8=is_fp8(cache),
        PARTS=parts,
        HEADS=heads,
        KV_HEADS=cache.shape[3],
        DIM=dim,
        PAIRS=pairs,
        ROTATED=cos.shape[-1],
        AT_ONCE=at_once,
        NORMED=norm is not None,
        OFFSET=0.0 if norm is None else norm.offset,
        num_warps=1 if at_once * pairs <= 256 else 4,
        **launch_options(x.device),
    )
    return q
