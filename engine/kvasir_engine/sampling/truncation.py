"""min-p, top-k and top-p within a kernel, without a sort.

The token drawn among all is the one drawn among the kept ones if it is one of these, which its own
score and the mass above it tell. One that is not bounds the kept ones from below, since they are
the likeliest, and the next is drawn above it with the same noise, as FlashInfer's sampler rejects.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvasir_engine.sampling.gumbel_kernel import gumbel_quads, scaled_logits


@triton.jit
def _largest(logits_row, vocab_size, temperature, TOKENS: tl.constexpr):
    best = float("-inf")
    for first in range(0, vocab_size, TOKENS):
        best = tl.maximum(
            best, tl.max(scaled_logits(logits_row, first, vocab_size, temperature, TOKENS), 0)
        )
    return best


@triton.jit
def _above(logits_row, vocab_size, temperature, bound, floor, best, TOKENS: tl.constexpr):
    """Return how many tokens score above `bound` and at least `floor`, and their sum of exp(s -
    best)."""
    count, mass = 0, 0.0
    for first in range(0, vocab_size, TOKENS):
        scaled = scaled_logits(logits_row, first, vocab_size, temperature, TOKENS)
        counted = (scaled > bound) & (scaled >= floor)
        count += tl.sum(counted.to(tl.int32), 0)
        mass += tl.sum(tl.where(counted, tl.exp(scaled - best), 0.0), 0)
    return count, mass


@triton.jit
def _value_of(key):
    """The fp32 number of a 32-bit key whose order as an unsigned integer is the numbers'."""
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _kth_largest(logits_row, vocab_size, temperature, floor, k, TOKENS: tl.constexpr):
    """The largest number that at least k of the tokens above `floor` reach, a bit at a time."""
    found = tl.full([], 0, tl.int64)
    for bit in range(32):
        tried = found | (tl.full([], 1, tl.int64) << (31 - bit))
        value = _value_of(tried)
        count = 0
        for first in range(0, vocab_size, TOKENS):
            scaled = scaled_logits(logits_row, first, vocab_size, temperature, TOKENS)
            count += tl.sum(((scaled >= value) & (scaled >= floor)).to(tl.int32), 0)
        # A NaN, beyond infinity, is reached by none.
        found = tl.where(count >= k, tried, found)
    return tl.where(found == 0, float("-inf"), _value_of(found))


@triton.jit
def _argmax_above(
    logits_row, vocab_size, temperature, pivot, floor, ints_row, position,
    PURPOSE: tl.constexpr, QUADS: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """The arg max under noise of the tokens above `pivot`."""
    best, token = float("-inf"), 0
    for first in range(0, vocab_size, QUADS * 4):
        scaled = scaled_logits(logits_row, first, vocab_size, temperature, QUADS * 4)
        scores = scaled + gumbel_quads(first // 4, ints_row, position, PURPOSE, QUADS, ON_GPU)
        scores = tl.where((scaled > pivot) & (scaled >= floor), scores, float("-inf"))
        largest = tl.max(scores, 0)
        token = tl.where(largest > best, first + tl.argmax(scores, 0), token)
        best = tl.maximum(best, largest)
    return token


@triton.jit
def sample_truncated(
    token, logits_row, vocab_size, temperature, top_p, min_p, top_k, ints_row, position,
    PURPOSE: tl.constexpr, QUADS: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """`token`, the arg max of all, or that of the tokens that min-p, top-k and top-p keep."""
    tokens: tl.constexpr = QUADS * 4
    best = _largest(logits_row, vocab_size, temperature, tokens)
    lowest = best + tl.log(tl.maximum(min_p, 1e-30))
    floor = tl.where(min_p > 0.0, lowest, float("-inf"))
    if (top_p < 1.0) & (top_k < vocab_size):
        kth = _kth_largest(logits_row, vocab_size, temperature, floor, top_k, tokens)
        floor = tl.maximum(floor, kth)
    _, whole = _above(logits_row, vocab_size, temperature, float("-inf"), floor, best, tokens)
    searching = 1
    while searching == 1:
        scaled = tl.load(logits_row + token).to(tl.float32) / temperature
        count, mass = _above(logits_row, vocab_size, temperature, scaled, floor, best, tokens)
        kept = (scaled >= floor) & (mass < top_p * whole) & (count < top_k)
        if kept | (count == 0):
            searching = 0
        else:
            token = _argmax_above(
                logits_row, vocab_size, temperature, scaled, floor, ints_row, position,
                PURPOSE, QUADS, ON_GPU,
            )  # fmt: skip
    return token
