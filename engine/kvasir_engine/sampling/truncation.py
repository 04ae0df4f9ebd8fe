"""min-p, top-k and top-p within a kernel, without a sort.

The token drawn among all is the one drawn among the kept ones if it is one of these, which its own
score and the mass above it tell. One that is not bounds the kept ones from below, since they are
the likeliest, and the next is drawn above it with the same noise, as FlashInfer's sampler rejects.

The vocabulary lies in spans of SPAN tokens, whose largest scores an earlier kernel has left. The
k-th largest of these is reached by at least k tokens, so that top-k keeps nothing below it: only
the spans that reach it are looked at, about k of a thousand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvasir_engine.sampling.gumbel_kernel import gumbel_of_quads


@triton.jit
def _value_of(key):
    """The fp32 number of a 32-bit key whose order as an unsigned integer is the numbers'."""
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _kth_of(values, k):
    """The largest number that at least k of the values reach, a bit at a time."""
    found = tl.full([], 0, tl.int64)
    for bit in range(32):
        tried = found | (tl.full([], 1, tl.int64) << (31 - bit))
        # A NaN, beyond infinity, is reached by none.
        count = tl.sum((values >= _value_of(tried)).to(tl.int32), 0)
        found = tl.where(count >= k, tried, found)
    return tl.where(found == 0, float("-inf"), _value_of(found))


@triton.jit
def _list_spans(largest, lowest, spans, list_row, PADDED_SPANS: tl.constexpr):
    """Write down the spans that reach `lowest`; return how many."""
    span = tl.arange(0, PADDED_SPANS)
    reaches = (largest >= lowest) & (span < spans)
    place = tl.cumsum(reaches.to(tl.int32), 0) - 1
    tl.store(list_row + place, span, mask=reaches)
    tl.debug_barrier()  # Other threads read what this one wrote.
    return tl.sum(reaches.to(tl.int32), 0)


@triton.jit
def _scaled(
    logits_row, vocab_size, temperature, list_row, at, listed,
    TOKENS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Tokens of the spans listed from `at` on, and their scores: -inf where there is none."""
    within = tl.arange(0, TOKENS)
    place = at + within // SPAN
    span = tl.load(list_row + place, mask=place < listed, other=0)
    token = tl.max_contiguous(tl.multiple_of(span * SPAN + within % SPAN, 8), 8)
    inside = (place < listed) & (token < vocab_size)
    logits = tl.load(logits_row + token, mask=inside, other=float("-inf")).to(tl.float32)
    return token, logits / temperature


@triton.jit
def _above(
    logits_row, vocab_size, temperature, list_row, listed, bound, floor, best,
    TOKENS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Return how many tokens score above `bound` and at least `floor`, and their sum of exp(s -
    best)."""
    count, mass = 0, 0.0
    for at in range(0, listed, TOKENS // SPAN):
        _, scaled = _scaled(logits_row, vocab_size, temperature, list_row, at, listed, TOKENS, SPAN)
        counted = (scaled > bound) & (scaled >= floor)
        count += tl.sum(counted.to(tl.int32), 0)
        mass += tl.sum(tl.where(counted, tl.exp(scaled - best), 0.0), 0)
    return count, mass


@triton.jit
def _kth_largest(
    logits_row, vocab_size, temperature, list_row, listed, floor, k,
    TOKENS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The largest number that at least k of the tokens above `floor` reach, as `_kth_of`."""
    found = tl.full([], 0, tl.int64)
    for bit in range(32):
        tried = found | (tl.full([], 1, tl.int64) << (31 - bit))
        value = _value_of(tried)
        count = 0
        for at in range(0, listed, TOKENS // SPAN):
            _, scaled = _scaled(
                logits_row, vocab_size, temperature, list_row, at, listed, TOKENS, SPAN
            )
            count += tl.sum(((scaled >= value) & (scaled >= floor)).to(tl.int32), 0)
        found = tl.where(count >= k, tried, found)
    return tl.where(found == 0, float("-inf"), _value_of(found))


@triton.jit
def _argmax_above(
    logits_row, vocab_size, temperature, list_row, listed, pivot, floor, ints_row, position,
    PURPOSE: tl.constexpr, TOKENS: tl.constexpr, SPAN: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """The arg max under noise of the tokens above `pivot`."""
    best, found = float("-inf"), 0
    for at in range(0, listed, TOKENS // SPAN):
        token, scaled = _scaled(
            logits_row, vocab_size, temperature, list_row, at, listed, TOKENS, SPAN
        )
        within = tl.arange(0, TOKENS // 4)
        place = at + within // (SPAN // 4)
        span = tl.load(list_row + place, mask=place < listed, other=0)
        quad = span * (SPAN // 4) + within % (SPAN // 4)
        scores = scaled + gumbel_of_quads(quad, ints_row, position, PURPOSE, TOKENS // 4, ON_GPU)
        scores = tl.where((scaled > pivot) & (scaled >= floor), scores, float("-inf"))
        largest = tl.max(scores, 0)
        # Of equal scores the first, as an arg max has it.
        first = tl.min(tl.where(scores == largest, token, 2147483647), 0)
        found = tl.where(largest > best, first, found)
        best = tl.maximum(best, largest)
    return found


@triton.jit
def sample_truncated(
    token, logits_row, vocab_size, temperature, top_p, min_p, top_k, largest_row, list_row, spans,
    ints_row, position,
    PURPOSE: tl.constexpr, TOKENS: tl.constexpr, SPAN: tl.constexpr, PADDED_SPANS: tl.constexpr,
    ON_GPU: tl.constexpr,
):  # fmt: skip
    """`token`, the arg max of all, or that of the tokens that min-p, top-k and top-p keep."""
    span = tl.arange(0, PADDED_SPANS)
    largest = tl.load(largest_row + span, mask=span < spans, other=float("-inf"))
    best = tl.max(largest, 0)
    lowest = best + tl.log(tl.maximum(min_p, 1e-30))
    floor = tl.where(min_p > 0.0, lowest, float("-inf"))
    reached = floor
    if top_k < spans:
        reached = tl.maximum(reached, _kth_of(largest, top_k))
    listed = _list_spans(largest, reached, spans, list_row, PADDED_SPANS)
    if (top_p < 1.0) & (top_k < vocab_size):
        kth = _kth_largest(
            logits_row, vocab_size, temperature, list_row, listed, floor, top_k, TOKENS, SPAN
        )
        floor = tl.maximum(floor, kth)
    _, whole = _above(
        logits_row, vocab_size, temperature, list_row, listed, float("-inf"), floor, best,
        TOKENS, SPAN,
    )  # fmt: skip
    searching = 1
    while searching == 1:
        scaled = tl.load(logits_row + token).to(tl.float32) / temperature
        count, mass = _above(
            logits_row, vocab_size, temperature, list_row, listed, scaled, floor, best,
            TOKENS, SPAN,
        )  # fmt: skip
        kept = (scaled >= floor) & (mass < top_p * whole) & (count < top_k)
        if kept | (count == 0):
            searching = 0
        else:
            token = _argmax_above(
                logits_row, vocab_size, temperature, list_row, listed, scaled, floor, ints_row,
                position, PURPOSE, TOKENS, SPAN, ON_GPU,
            )  # fmt: skip
    return token
