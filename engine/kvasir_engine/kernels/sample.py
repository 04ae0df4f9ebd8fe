"""Samples a token a row from its logits, without a softmax, a sort or a cumulative sum.

The arg max of logits / temperature + Gumbel noise is a draw from the softmax (Gumbel, 1954). The
noise is that of `runner.gumbel`: word v % 4 of the Philox4x32-10 block with counter (v // 4,
position, purpose, sample index). With min-p, top-k or top-p the arg max is drawn among all tokens
first: a token that belongs to the kept ones is their arg max too. One that does not bounds them
from below, since they are the likeliest ones, and the next is drawn above it (the rejection of
FlashInfer's sampler, with the same noise each time). Ties with the last kept one are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvasir_engine.kernels.launch import begin, launch_options
from kvasir_engine.runner.philox import PURPOSE_SAMPLE
from kvasir_engine.runner.sampling_state import GREEDY_BELOW, SamplingTables

CHUNK_QUADS = 1024
"""Philox blocks that a row's second program works on at once: 4096 tokens."""


@dataclass(frozen=True, slots=True)
class AcceptInto:
    """Where sampled tokens go: `DeviceBatch`'s arrays by row; rows from `spare_row` on own none."""

    history: torch.Tensor
    num_tokens: torch.Tensor
    num_computed: torch.Tensor
    spare_row: int


@triton.jit
def _log(x, APPROXIMATE: tl.constexpr):
    """Natural logarithm; the approximation is off by 1.6e-7 near 1, and six times as fast."""
    if APPROXIMATE:
        log2 = tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        return log2 * 0.6931471805599453
    return tl.log(x)


@triton.jit
def _gumbel(words, APPROXIMATE: tl.constexpr):
    """-log(-log(1 - v)) of v = (word + 0.5) / 2^32, precise near v = 0 where the noise is large."""
    v = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = tl.minimum(v, 0.99999994)
    small = v * (1.0 + v * (0.5 + v * (0.33333333 + v * 0.25)))
    return -_log(tl.where(v < 0.01, small, -_log(1.0 - v, APPROXIMATE)), APPROXIMATE)


@triton.jit
def _noise(
    first_quad, ints_row, position,
    PURPOSE: tl.constexpr, QUADS: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """Noise of 4 * QUADS tokens; `ints_row` points to the row's seed and sample index."""
    quad = first_quad + tl.arange(0, QUADS)
    low, high = tl.load(ints_row).to(tl.uint64), tl.load(ints_row + 1).to(tl.uint64)
    zeros = (quad * 0).to(tl.uint32)
    at, sample = zeros + position.to(tl.uint32), zeros + tl.load(ints_row + 2).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(low | (high << 32), quad.to(tl.uint32), at, zeros + PURPOSE, sample)
    return _gumbel(tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(QUADS * 4), ON_GPU)


@triton.jit
def _scaled(logits_row, first, vocab_size, temperature, TOKENS: tl.constexpr):
    token = first + tl.arange(0, TOKENS)
    inside = token < vocab_size
    logits = tl.load(logits_row + token, mask=inside, other=float("-inf")).to(tl.float32)
    return logits / temperature


@triton.jit
def _best_of_part(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    floats_ptr,
    ints_ptr,
    value_ptr,
    token_ptr,
    stride,
    vocab_size,
    parts,
    FLOATS: tl.constexpr,
    INTS: tl.constexpr,
    GREEDY: tl.constexpr,
    PURPOSE: tl.constexpr,
    QUADS: tl.constexpr,
    ON_GPU: tl.constexpr,
    PDL: tl.constexpr,
):
    entry, part = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    row = tl.load(rows_ptr + entry)
    temperature = tl.load(floats_ptr + row * FLOATS)
    random = temperature >= GREEDY
    first = part * QUADS * 4
    scores = _scaled(
        logits_ptr + entry.to(tl.int64) * stride,
        first,
        vocab_size,
        tl.where(random, temperature, 1.0),
        QUADS * 4,
    )
    if random:
        position = tl.load(positions_ptr + entry)
        scores += _noise(part * QUADS, ints_ptr + row * INTS, position, PURPOSE, QUADS, ON_GPU)
    tl.store(value_ptr + entry * parts + part, tl.max(scores, 0))
    tl.store(token_ptr + entry * parts + part, first + tl.argmax(scores, 0))


@triton.jit
def _largest(logits_row, vocab_size, temperature, TOKENS: tl.constexpr):
    best = float("-inf")
    for first in range(0, vocab_size, TOKENS):
        best = tl.maximum(
            best, tl.max(_scaled(logits_row, first, vocab_size, temperature, TOKENS), 0)
        )
    return best


@triton.jit
def _above(logits_row, vocab_size, temperature, bound, floor, best, TOKENS: tl.constexpr):
    """How many tokens score above `bound` and at least `floor`, and their sum of exp(s - best)."""
    count, mass = 0, 0.0
    for first in range(0, vocab_size, TOKENS):
        scaled = _scaled(logits_row, first, vocab_size, temperature, TOKENS)
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
            scaled = _scaled(logits_row, first, vocab_size, temperature, TOKENS)
            count += tl.sum(((scaled >= value) & (scaled >= floor)).to(tl.int32), 0)
        # A NaN, beyond infinity, is reached by none.
        found = tl.where(count >= k, tried, found)
    return tl.where(found == 0, float("-inf"), _value_of(found))


@triton.jit
def _next_best(
    logits_row, vocab_size, temperature, pivot, floor, ints_row, position,
    PURPOSE: tl.constexpr, QUADS: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """The arg max under noise of the tokens above `pivot`."""
    best, token = float("-inf"), 0
    for first in range(0, vocab_size, QUADS * 4):
        scaled = _scaled(logits_row, first, vocab_size, temperature, QUADS * 4)
        scores = scaled + _noise(first // 4, ints_row, position, PURPOSE, QUADS, ON_GPU)
        scores = tl.where((scaled > pivot) & (scaled >= floor), scores, float("-inf"))
        largest = tl.max(scores, 0)
        token = tl.where(largest > best, first + tl.argmax(scores, 0), token)
        best = tl.maximum(best, largest)
    return token


@triton.jit
def _truncated(
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
            token = _next_best(
                logits_row, vocab_size, temperature, scaled, floor, ints_row, position,
                PURPOSE, QUADS, ON_GPU,
            )  # fmt: skip
    return token


@triton.jit
def _choose(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    floats_ptr,
    ints_ptr,
    value_ptr,
    token_ptr,
    out_ptr,
    history_ptr,
    num_tokens_ptr,
    num_computed_ptr,
    stride,
    vocab_size,
    parts,
    history_stride,
    spare_row,
    FLOATS: tl.constexpr,
    INTS: tl.constexpr,
    GREEDY: tl.constexpr,
    PURPOSE: tl.constexpr,
    QUADS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    ON_GPU: tl.constexpr,
    ACCEPT: tl.constexpr,
    PDL: tl.constexpr,
):
    entry = tl.program_id(0)
    begin(PDL)
    row = tl.load(rows_ptr + entry)
    part = tl.arange(0, PADDED_PARTS)
    values = tl.load(value_ptr + entry * parts + part, mask=part < parts, other=float("-inf"))
    token = tl.load(token_ptr + entry * parts + tl.argmax(values, 0))
    floats, ints = floats_ptr + row * FLOATS, ints_ptr + row * INTS
    temperature, top_p, min_p = tl.load(floats), tl.load(floats + 1), tl.load(floats + 2)
    top_k = tl.load(ints + 3).to(tl.int32)
    truncates = (top_p < 1.0) | (min_p > 0.0) | (top_k < vocab_size)
    if (temperature >= GREEDY) & truncates:
        token = _truncated(
            token, logits_ptr + entry.to(tl.int64) * stride, vocab_size, temperature, top_p,
            min_p, top_k, ints, tl.load(positions_ptr + entry), PURPOSE, QUADS, ON_GPU,
        )  # fmt: skip
    tl.store(out_ptr + entry, token)
    if ACCEPT:  # noqa: SIM102
        # `and` would make one condition of it, and compile this where it has nothing to write to.
        if row < spare_row:
            length = tl.load(num_tokens_ptr + row)
            tl.store(history_ptr + row * history_stride + length, token)
            tl.store(num_tokens_ptr + row, length + 1)
            tl.store(num_computed_ptr + row, tl.load(num_computed_ptr + row) + 1)


def sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tables: SamplingTables,
    accept: AcceptInto | None = None,
    *,
    quads: int | None = None,
    chunk_quads: int = CHUNK_QUADS,
) -> torch.Tensor:
    """A token for each entry, int32 [n], under the parameters of its row.

    logits [n, vocab] of any float type; rows int64 [n]; positions [n], of the tokens to be
    sampled. With `accept` each row's history takes its token, and one more of its tokens counts as
    computed.
    """
    count, vocab_size = logits.shape
    if quads is None:
        # Few rows: more programs for each.
        quads = 256 if count <= 16 else 1024
    parts = triton.cdiv(vocab_size, quads * 4)
    values = torch.empty((count, parts), dtype=torch.float32, device=logits.device)
    best = torch.empty((count, parts), dtype=torch.int32, device=logits.device)
    out = torch.empty(count, dtype=torch.int32, device=logits.device)
    given = (logits, rows, positions, tables.floats, tables.ints, values, best)
    options = launch_options(logits.device)
    constants = {
        "FLOATS": tables.floats.shape[1],
        "INTS": tables.ints.shape[1],
        "GREEDY": GREEDY_BELOW,
        "PURPOSE": PURPOSE_SAMPLE,
        "ON_GPU": logits.is_cuda,
    }
    _best_of_part[(count, parts)](
        *given, logits.stride(0), vocab_size, parts, QUADS=quads, **constants, **options
    )
    _choose[(count,)](
        *given,
        out,
        out if accept is None else accept.history,
        out if accept is None else accept.num_tokens,
        out if accept is None else accept.num_computed,
        logits.stride(0),
        vocab_size,
        parts,
        0 if accept is None else accept.history.stride(0),
        0 if accept is None else accept.spare_row,
        QUADS=chunk_quads,
        PADDED_PARTS=triton.next_power_of_2(parts),
        ACCEPT=accept is not None,
        num_warps=8,
        **constants,
        **options,
    )
    return out
