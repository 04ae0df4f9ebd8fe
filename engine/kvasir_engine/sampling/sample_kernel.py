"""Sample one token per row from logits, without softmax, sort or cumulative sum.

Where ranks share the vocabulary and no row truncates, each rank finds its own tokens' best scores;
these are gathered instead of the logits.

The arg max of logits / temperature + Gumbel noise is a draw from the softmax (Gumbel, 1954). The
noise is that of `sampling.gumbel`: word v % 4 of the Philox4x32-10 block with counter (v // 4,
position, purpose, sample index). Rows with min-p, top-k or top-p see to these afterwards
(`truncation.py`); ties with the last kept token are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvasir_engine.device.collectives import all_gather
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.vocab_shard import VocabShard
from kvasir_engine.sampling.gumbel_kernel import gumbel_of_quads, scaled_logits
from kvasir_engine.sampling.philox import PURPOSE_SAMPLE
from kvasir_engine.sampling.sampling_state import GREEDY_BELOW, SamplingTables
from kvasir_engine.sampling.truncation import sample_truncated

CHUNK_QUADS = 1024
"""Philox blocks that a row's second program works on at once: 4096 tokens."""
SPAN = 128
"""Tokens of which the largest score is written down for rows with min-p, top-k or top-p."""


@dataclass(frozen=True, slots=True)
class SampledInto:
    """Destination of sampled tokens: `DeviceBatch`'s arrays by row; none from `padding_row` on."""

    history: torch.Tensor
    num_tokens: torch.Tensor
    num_computed: torch.Tensor
    padding_row: int


@triton.jit
def _truncates(floats_row, ints_row, vocab_size):
    top_p, min_p = tl.load(floats_row + 1), tl.load(floats_row + 2)
    return (top_p < 1.0) | (min_p > 0.0) | (tl.load(ints_row + 3) < vocab_size)


@triton.jit
def _argmax_of_split(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    floats_ptr,
    ints_ptr,
    value_ptr,
    token_ptr,
    largest_ptr,
    stride,
    vocab_size,
    first_token,
    parts,
    spans,
    FLOATS: tl.constexpr,
    INTS: tl.constexpr,
    GREEDY: tl.constexpr,
    PURPOSE: tl.constexpr,
    SPAN: tl.constexpr,
    TRUNCATES: tl.constexpr,
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
    scores = scaled_logits(
        logits_ptr + entry.to(tl.int64) * stride,
        first,
        vocab_size,
        tl.where(random, temperature, 1.0),
        QUADS * 4,
    )
    if random:
        if TRUNCATES:  # noqa: SIM102
            if _truncates(floats_ptr + row * FLOATS, ints_ptr + row * INTS, vocab_size):
                largest = tl.max(scores.reshape(QUADS * 4 // SPAN, SPAN), 1)
                span = first // SPAN + tl.arange(0, QUADS * 4 // SPAN)
                tl.store(largest_ptr + entry * spans + span, largest, mask=span < spans)
        position = tl.load(positions_ptr + entry)
        quads = first_token // 4 + part * QUADS + tl.arange(0, QUADS)
        scores += gumbel_of_quads(quads, ints_ptr + row * INTS, position, PURPOSE, QUADS, ON_GPU)
    tl.store(value_ptr + entry * parts + part, tl.max(scores, 0))
    # As a float, which tokens fit: values and tokens are gathered together.
    token = first_token + first + tl.argmax(scores, 0)
    tl.store(token_ptr + entry * parts + part, token.to(tl.float32))


@triton.jit
def _choose(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    floats_ptr,
    ints_ptr,
    value_ptr,
    token_ptr,
    largest_ptr,
    list_ptr,
    out_ptr,
    history_ptr,
    num_tokens_ptr,
    num_computed_ptr,
    stride,
    vocab_size,
    parts,
    spans,
    history_stride,
    padding_row,
    FLOATS: tl.constexpr,
    INTS: tl.constexpr,
    GREEDY: tl.constexpr,
    PURPOSE: tl.constexpr,
    SPAN: tl.constexpr,
    TRUNCATES: tl.constexpr,
    TOKENS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    PADDED_SPANS: tl.constexpr,
    ON_GPU: tl.constexpr,
    ACCEPT: tl.constexpr,
    PDL: tl.constexpr,
):
    entry = tl.program_id(0)
    begin(PDL)
    row = tl.load(rows_ptr + entry)
    part = tl.arange(0, PADDED_PARTS)
    values = tl.load(value_ptr + entry * parts + part, mask=part < parts, other=float("-inf"))
    token = tl.load(token_ptr + entry * parts + tl.argmax(values, 0)).to(tl.int32)
    if TRUNCATES:
        floats, ints = floats_ptr + row * FLOATS, ints_ptr + row * INTS
        temperature = tl.load(floats)
        if (temperature >= GREEDY) & _truncates(floats, ints, vocab_size):
            token = sample_truncated(
                token, logits_ptr + entry.to(tl.int64) * stride, vocab_size, temperature,
                tl.load(floats + 1), tl.load(floats + 2), tl.load(ints + 3).to(tl.int32),
                largest_ptr + entry * spans, list_ptr + entry * spans, spans, ints,
                tl.load(positions_ptr + entry), PURPOSE, TOKENS, SPAN, PADDED_SPANS, ON_GPU,
            )  # fmt: skip
    tl.store(out_ptr + entry, token)
    if ACCEPT:  # noqa: SIM102
        # `and` would make one condition of it, and compile this where it has nothing to write to.
        if row < padding_row:
            length = tl.load(num_tokens_ptr + row)
            tl.store(history_ptr + row * history_stride + length, token)
            tl.store(num_tokens_ptr + row, length + 1)
            tl.store(num_computed_ptr + row, tl.load(num_computed_ptr + row) + 1)


def sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tables: SamplingTables,
    accept: SampledInto | None = None,
    *,
    shard: VocabShard | None = None,
    quads: int | None = None,
    chunk_quads: int = CHUNK_QUADS,
) -> torch.Tensor:
    """A token for each entry, int32 [n], under the parameters of its row.

    logits [n, vocab] of any float type; rows int64 [n]; positions [n], of the tokens to be
    sampled. With `accept` each row's history takes its token, and one more of its tokens counts as
    computed. With `shard` the logits are this rank's, and no row may truncate.
    """
    count, width = logits.shape
    vocab_size, first_token = (width, 0) if shard is None else (shard.count, shard.first)
    if quads is None:
        # Few rows: more programs for each.
        quads = 256 if count <= 16 else 1024
    parts = triton.cdiv(width, quads * 4)
    span = min(SPAN, 4 * quads, 4 * chunk_quads)
    spans = triton.cdiv(width, span)
    best = torch.empty((2, count, parts), dtype=torch.float32, device=logits.device)
    largest = torch.empty((count, spans), dtype=torch.float32, device=logits.device)
    listed = torch.empty((count, spans), dtype=torch.int32, device=logits.device)
    out = torch.empty(count, dtype=torch.int32, device=logits.device)
    given = (logits, rows, positions, tables.floats, tables.ints)
    options = launch_options(logits.device)
    constants = {
        "FLOATS": tables.floats.shape[1],
        "INTS": tables.ints.shape[1],
        "GREEDY": GREEDY_BELOW,
        "PURPOSE": PURPOSE_SAMPLE,
        "SPAN": span,
        "TRUNCATES": shard is None,
        "ON_GPU": logits.is_cuda,
    }
    _argmax_of_split[(count, parts)](
        *(*given, best[0], best[1], largest),
        *(logits.stride(0), vocab_size, first_token, parts, spans),
        QUADS=quads,
        **constants,
        **options,
    )
    if shard is not None:
        best = all_gather(best)
        parts = best.shape[2]
    _choose[(count,)](
        *(*given, best[0], best[1], largest),
        listed,
        out,
        out if accept is None else accept.history,
        out if accept is None else accept.num_tokens,
        out if accept is None else accept.num_computed,
        logits.stride(0),
        vocab_size,
        parts,
        spans,
        0 if accept is None else accept.history.stride(0),
        0 if accept is None else accept.padding_row,
        TOKENS=4 * chunk_quads,
        PADDED_PARTS=triton.next_power_of_2(parts),
        PADDED_SPANS=triton.next_power_of_2(spans),
        ACCEPT=accept is not None,
        num_warps=8,
        **constants,
        **options,
    )
    return out
