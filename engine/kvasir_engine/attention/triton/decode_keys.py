"""The loops of decodes over their keys, by the type of the cache: the model's, or float8."""

from __future__ import annotations

import triton
import triton.language as tl

from kvasir_engine.attention.triton.fp8_cache import even_channels, odd_channels
from kvasir_engine.attention.triton.online_softmax import LOG2_E, NO_SCORE, soft_cap

_LARGEST_FP16 = tl.constexpr(65504.0)


@triton.jit
def _weigh(scores, seen, best, total, CAP: tl.constexpr):
    """Return the weights of some keys' scores, what earlier ones shrink by, and the running maximum
    and sum."""
    if CAP > 0.0:
        scores = soft_cap(scores, CAP) * LOG2_E
    scores = tl.where(seen[None, :], scores, NO_SCORE)
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    return weights, shrink, higher, total * shrink + tl.sum(weights, 1)


@triton.jit
def attend_plain(
    q_ptr, cache_ptr, table_row, value_offset, scale, kv_head, head, own_row, start_at, end,
    KV_HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr, KEYS: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return maximum, sum and mix [ROWS, PADDED_DIM] of one token's heads over keys `start_at` to
    `end`."""
    dim = tl.arange(0, PADDED_DIM)
    own_dim = dim < DIM
    q = tl.load(
        q_ptr + head[:, None] * DIM + dim[None, :],
        mask=own_row[:, None] & own_dim[None, :],
        other=0.0,
    )
    best = tl.full([ROWS], NO_SCORE, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(start_at, end, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < end
        block = tl.load(table_row + key // BLOCK, mask=seen, other=0)
        offset = ((block.to(tl.int64) * BLOCK + key % BLOCK) * KV_HEADS + kv_head) * DIM
        k = tl.load(
            cache_ptr + offset[None, :] + dim[:, None],
            mask=seen[None, :] & own_dim[:, None],
            other=0.0,
        )
        v = tl.load(
            cache_ptr + value_offset + offset[:, None] + dim[None, :],
            mask=seen[:, None] & own_dim[None, :],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        weights, shrink, best, total = _weigh(scores, seen, best, total, CAP)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return best, total, acc


@triton.jit
def load_fp16_pairs(
    q_rows, own_row, ROWS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr
):
    """Return the even and the odd channels of queries at `q_rows` [ROWS] in float16."""
    pair = tl.arange(0, PADDED_DIM // 2)
    at = q_rows[:, None] + 2 * pair[None, :]
    asked = own_row[:, None] & (pair < DIM // 2)[None, :]
    even = tl.load(at, mask=asked, other=0.0).to(tl.float32)
    odd = tl.load(at + 1, mask=asked, other=0.0).to(tl.float32)
    even = tl.clamp(even, -_LARGEST_FP16, _LARGEST_FP16).to(tl.float16)
    return even, tl.clamp(odd, -_LARGEST_FP16, _LARGEST_FP16).to(tl.float16)


@triton.jit
def attend_fp8(
    q_rows, pairs_ptr, table_row, value_offset, scale, value_scale, kv_head, own_row, start_at, end,
    KV_HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr, KEYS: tl.constexpr, CAP: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`attend_plain` for queries at `q_rows` [ROWS] over a cache of float8, as pairs of channels;
    `value_offset` counts pairs."""
    pair = tl.arange(0, PADDED_DIM // 2)
    own_pair = pair < DIM // 2
    q_even, q_odd = load_fp16_pairs(q_rows, own_row, ROWS, DIM, PADDED_DIM)
    best = tl.full([ROWS], NO_SCORE, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    even = tl.zeros([ROWS, PADDED_DIM // 2], tl.float32)
    odd = tl.zeros([ROWS, PADDED_DIM // 2], tl.float32)
    for start in range(start_at, end, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < end
        block = tl.load(table_row + key // BLOCK, mask=seen, other=0)
        offset = ((block.to(tl.int64) * BLOCK + key % BLOCK) * KV_HEADS + kv_head) * (DIM // 2)
        k = tl.load(
            pairs_ptr + offset[None, :] + pair[:, None],
            mask=seen[None, :] & own_pair[:, None],
            other=0,
        )
        v = tl.load(
            pairs_ptr + value_offset + offset[:, None] + pair[None, :],
            mask=seen[:, None] & own_pair[None, :],
            other=0,
        )
        scores = tl.dot(q_even, even_channels(k, ASM))
        scores = tl.dot(q_odd, odd_channels(k, ASM), scores) * scale
        weights, shrink, best, total = _weigh(scores, seen, best, total, CAP)
        weights = weights.to(tl.float16)
        even = tl.dot(weights, even_channels(v, ASM), even * shrink[:, None])
        odd = tl.dot(weights, odd_channels(v, ASM), odd * shrink[:, None])
    return best, total, tl.interleave(even, odd) * value_scale
