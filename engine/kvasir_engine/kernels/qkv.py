"""From a projection to attention: QK norm, rotation, and the new keys and values into the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvasir_engine.kernels.launch import begin, launch_options


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMS norms of each query's and key's channels: weights [head_dim], added to `offset`."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float
    offset: float


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
    keys_ptr,
    values_ptr,
    x_stride,
    value_offset,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    AT_ONCE: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
    KEPT: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    dim = tl.arange(0, PADDED_DIM)
    is_query, is_value = head < HEADS, head >= HEADS + KV_HEADS
    own = (head < HEADS + 2 * KV_HEADS)[:, None] & (dim < DIM)[None, :]
    # The channel that this one turns with; channels past the rotated ones turn with themselves.
    half: tl.constexpr = ROTATED // 2
    partner = tl.where(dim < half, dim + half, tl.where(dim < ROTATED, dim - half, dim))
    row = x_ptr + token * x_stride + head[:, None] * DIM
    raw = tl.load(row + dim[None, :], mask=own, other=0.0)
    other = tl.load(row + partner[None, :], mask=own, other=0.0)
    x, turned = raw.to(tl.float32), other.to(tl.float32)
    if NORMED:
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / DIM + eps)
        in_head = (dim < DIM)[None, :]
        q_weight = tl.load(q_weight_ptr + dim[None, :], mask=in_head, other=0.0)
        k_weight = tl.load(k_weight_ptr + dim[None, :], mask=in_head, other=0.0)
        weight = tl.where(is_query[:, None], q_weight, k_weight).to(tl.float32) + OFFSET
        q_weight = tl.load(q_weight_ptr + partner[None, :], mask=in_head, other=0.0)
        k_weight = tl.load(k_weight_ptr + partner[None, :], mask=in_head, other=0.0)
        other_weight = tl.where(is_query[:, None], q_weight, k_weight).to(tl.float32) + OFFSET
        # Rounded to the model's type, as a norm of its own would be.
        x = (x * scale[:, None] * weight).to(raw.dtype).to(tl.float32)
        turned = (turned * scale[:, None] * other_weight).to(raw.dtype).to(tl.float32)
    table = token * ROTATED + dim[None, :]
    rotates = (dim < ROTATED)[None, :]
    cos = tl.load(cos_ptr + table, mask=rotates, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + table, mask=rotates, other=0.0).to(tl.float32)
    x = (x * cos + turned * sin).to(raw.dtype)
    x = tl.where(is_value[:, None], raw, x)
    at_query = q_ptr + (token * HEADS + head[:, None]) * DIM + dim[None, :]
    tl.store(at_query, x, mask=own & is_query[:, None])
    slot = tl.load(slots_ptr + token)
    kv_head = tl.where(is_value, head - KV_HEADS, head) - HEADS
    at_cache = cache_ptr + (slot * KV_HEADS + kv_head[:, None]) * DIM + dim[None, :]
    at_cache += tl.where(is_value, value_offset, 0)[:, None]
    tl.store(at_cache, x, mask=own & (head >= HEADS)[:, None])
    if KEPT:
        at_kept = (token * KV_HEADS + kv_head[:, None]) * DIM + dim[None, :]
        is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
        tl.store(keys_ptr + at_kept, x, mask=own & is_key[:, None])
        tl.store(values_ptr + at_kept, x, mask=own & is_value[:, None])


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
    kept: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """The rotated queries [tokens, heads, head_dim]; the rotated keys and the values go to `slots`.

    x [tokens, heads + 2 kv_heads, head_dim]: queries, keys and values, tokens may lie apart. cos
    and sin [tokens, 1, rotary_dim], the first half of sin negated; cache [2, blocks, block_size,
    kv_heads, head_dim]. The queries are put into contiguous `q` where it is given, and keys and
    values into `kept` too, [tokens, kv_heads, head_dim] each, contiguous.
    """
    tokens, total, dim = x.shape
    if q is None:
        q = torch.empty((tokens, heads, dim), dtype=x.dtype, device=x.device)
    keys, values = (q, q) if kept is None else kept
    if not tokens:
        return q
    padded = triton.next_power_of_2(dim)
    # Few tokens: a program a few heads, so that many multiprocessors share the work.
    at_once = 4 if tokens <= 64 else max(1, min(16, 2048 // padded))
    _store_qkv[(tokens, triton.cdiv(total, at_once))](
        x,
        cos,
        sin,
        x if norm is None else norm.query,
        x if norm is None else norm.key,
        slots,
        q,
        cache,
        keys,
        values,
        x.stride(0),
        cache.stride(0),
        0.0 if norm is None else norm.eps,
        HEADS=heads,
        KV_HEADS=cache.shape[3],
        DIM=dim,
        PADDED_DIM=padded,
        ROTATED=cos.shape[-1],
        AT_ONCE=at_once,
        NORMED=norm is not None,
        OFFSET=0.0 if norm is None else norm.offset,
        KEPT=kept is not None,
        num_warps=1 if at_once * padded <= 512 else 4,
        **launch_options(x.device),
    )
    return q
