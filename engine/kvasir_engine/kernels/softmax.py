"""The step that attention kernels repeat: a tile of queries over a few more keys, by running
maximum and sum (Milakov and Gimelshein, 2018; FlashAttention-2, Dao, 2023)."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NO_SCORE = tl.constexpr(-1e30)
"""Stands for -infinity, of which differences can be taken."""


@triton.jit
def soft_cap(scores, CAP: tl.constexpr):
    """CAP * tanh(scores / CAP), by exp alone."""
    return CAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / CAP)) + 1.0))


@triton.jit
def attend_keys(
    q,
    best,
    total,
    acc,
    start,
    position,
    length,
    cache_ptr,
    table_row,
    kv_head,
    value_offset,
    scale,
    MASKED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    key, dim = start + tl.arange(0, KEYS), tl.arange(0, PADDED_DIM)
    own_dim = dim < DIM
    inside = key < length
    block = tl.load(table_row + key // BLOCK, mask=inside, other=0)
    offset = ((block.to(tl.int64) * BLOCK + key % BLOCK) * KV_HEADS + kv_head) * DIM
    k = tl.load(
        cache_ptr + offset[None, :] + dim[:, None],
        mask=inside[None, :] & own_dim[:, None],
        other=0.0,
    )
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    if CAP > 0.0:
        scores = soft_cap(scores, CAP)
    scores = scores * LOG2_E
    if MASKED:
        seen = key[None, :] <= position[:, None]
        if WINDOW > 0:
            seen &= key[None, :] > position[:, None] - WINDOW
        scores = tl.where(seen, scores, NO_SCORE)
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    if MASKED:
        # A row may see no key of a block: its maximum stays where it was, or at -1e30.
        weights = tl.where(scores > NO_SCORE * 0.1, weights, 0.0)
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, 1)
    v = tl.load(
        cache_ptr + value_offset + offset[:, None] + dim[None, :],
        mask=inside[:, None] & own_dim[None, :],
        other=0.0,
    )
    acc = acc * shrink[:, None]
    acc += tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return higher, total, acc
