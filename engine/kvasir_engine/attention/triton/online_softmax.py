"""Online softmax over a tile of keys, the inner step of every attention kernel.

Milakov and Gimelshein, 2018; FlashAttention-2, Dao, 2023.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NO_SCORE = tl.constexpr(-1e30)
"""Stand for -infinity, of which differences can be taken."""


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
    """Update the online softmax (maximum, sum, accumulator) of a query tile with KEYS more keys
    from `start` on.

    Without a soft cap `scale` is times log2(e), with one it is not. Without MASKED all of the keys
    are seen by every query.
    """
    key, dim = start + tl.arange(0, KEYS), tl.arange(0, PADDED_DIM)
    k_mask, v_mask = (dim < DIM)[:, None], (dim < DIM)[None, :]
    if MASKED:
        inside = key < length
        k_mask, v_mask = k_mask & inside[None, :], v_mask & inside[:, None]
        block = tl.load(table_row + key // BLOCK, mask=inside, other=0)
    else:
        block = tl.load(table_row + key // BLOCK)
    offset = ((block.to(tl.int64) * BLOCK + key % BLOCK) * KV_HEADS + kv_head) * DIM
    k_ptrs = cache_ptr + offset[None, :] + dim[:, None]
    v_ptrs = cache_ptr + value_offset + offset[:, None] + dim[None, :]
    if MASKED or DIM != PADDED_DIM:
        k = tl.load(k_ptrs, mask=k_mask, other=0.0)
        v = tl.load(v_ptrs, mask=v_mask, other=0.0)
    else:
        k = tl.load(k_ptrs)
        v = tl.load(v_ptrs)
    products = tl.dot(q, k, input_precision=PRECISION)
    if MASKED or CAP > 0.0:
        scores = products * scale
        if CAP > 0.0:
            scores = soft_cap(scores, CAP) * LOG2_E
        if MASKED:
            seen = key[None, :] <= position[:, None]
            if WINDOW > 0:
                seen &= key[None, :] > position[:, None] - WINDOW
            scores = tl.where(seen, scores, NO_SCORE)
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        if MASKED:
            # A row may see no key of a block: its maximum stays where it was, or at NO_SCORE.
            weights = tl.where(scores > NO_SCORE * 0.1, weights, 0.0)
    else:
        # One multiplication and subtraction at once for each score.
        higher = tl.maximum(best, tl.max(products, 1) * scale)
        weights = tl.exp2(products * scale - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return higher, total, acc


@triton.jit
def merge_partial(best, total, acc, lse, mixed):
    """Running maximum, sum and mix of rows after what others have attended to: their scores' `lse`,
    base 2, and what they made, weighted."""
    higher = tl.maximum(best, lse)
    shrink, weight = tl.exp2(best - higher), tl.exp2(lse - higher)
    # A part without keys weighs nothing, and nobody wrote its values.
    mixed = tl.where((weight > 0.0)[:, None], mixed * weight[:, None], 0.0)
    return higher, total * shrink + weight, acc * shrink[:, None] + mixed


@triton.jit
def add_sink(best, total, acc, sinks_ptr, head, own):
    """Running maximum, sum and mix of rows of heads `head` with their sinks, which only the sum
    grows by: once for all keys of a row, whose other parts are merged already."""
    sink = tl.load(sinks_ptr + head, mask=own, other=0.0).to(tl.float32) * LOG2_E
    higher = tl.maximum(best, sink)
    shrink = tl.exp2(best - higher)
    return total * shrink + tl.exp2(sink - higher), acc * shrink[:, None]


def kernel_scale(scale: float, softcap: float | None) -> float:
    """Return the scale that `attend_keys` takes for a layer's."""
    return scale if softcap else scale * math.log2(math.e)
