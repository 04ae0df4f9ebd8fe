"""Log-probabilities, rank and likeliest tokens of each row, with the logits read once.

The first kernel leaves of each part of a row its largest logit, its sum of exponentials and how
many logits exceed the chosen token's, and the largest logit of each span of SPAN tokens. The second
puts a row's parts together and takes the likeliest tokens one after the other: each time from the
span with the largest logit left, whose largest but the taken ones is then found anew.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options

TOKENS = 4096
"""Tokens a program of the first kernel."""
SPAN = 128
_LEAST = tl.constexpr(-3.4028234663852886e38)
"""The least number; -inf stands for what is taken."""


@triton.jit
def _load(logits_row, token, inside):
    logits = tl.load(logits_row + token, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.where(inside, tl.maximum(logits, _LEAST), float("-inf"))


@triton.jit
def _of_parts(
    logits_ptr,
    tokens_ptr,
    best_ptr,
    mass_ptr,
    above_ptr,
    largest_ptr,
    stride,
    vocab_size,
    parts,
    spans,
    TOKENS: tl.constexpr,
    SPAN: tl.constexpr,
    PDL: tl.constexpr,
):
    entry, part = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    logits_row = logits_ptr + entry.to(tl.int64) * stride
    token = part * TOKENS + tl.arange(0, TOKENS)
    logits = _load(logits_row, token, token < vocab_size)
    chosen = _load(logits_row, tl.load(tokens_ptr + entry), True)
    largest = tl.max(logits.reshape(TOKENS // SPAN, SPAN), 1)
    span = part * (TOKENS // SPAN) + tl.arange(0, TOKENS // SPAN)
    tl.store(largest_ptr + entry * spans + span, largest, mask=span < spans)
    best, at = tl.max(largest, 0), entry * parts + part
    tl.store(best_ptr + at, best)
    tl.store(mass_ptr + at, tl.sum(tl.exp(logits - best), 0))
    tl.store(above_ptr + at, tl.sum((logits > chosen).to(tl.int32), 0))


@triton.jit
def _of_rows(
    logits_ptr,
    tokens_ptr,
    best_ptr,
    mass_ptr,
    above_ptr,
    largest_ptr,
    logprobs_ptr,
    ranks_ptr,
    top_ids_ptr,
    top_logprobs_ptr,
    stride,
    vocab_size,
    parts,
    spans,
    top,
    SPAN: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    PADDED_SPANS: tl.constexpr,
    PDL: tl.constexpr,
):
    entry = tl.program_id(0)
    begin(PDL)
    logits_row = logits_ptr + entry.to(tl.int64) * stride
    part = tl.arange(0, PADDED_PARTS)
    at, there = entry * parts + part, part < parts
    bests = tl.load(best_ptr + at, mask=there, other=float("-inf"))
    best = tl.max(bests, 0)
    masses = tl.load(mass_ptr + at, mask=there, other=0.0) * tl.exp(bests - best)
    total = best + tl.log(tl.sum(masses, 0))
    chosen = tl.load(logits_row + tl.load(tokens_ptr + entry)).to(tl.float32)
    tl.store(logprobs_ptr + entry, chosen - total)
    tl.store(ranks_ptr + entry, tl.sum(tl.load(above_ptr + at, mask=there, other=0), 0) + 1)
    span = tl.arange(0, PADDED_SPANS)
    largest = tl.load(largest_ptr + entry * spans + span, mask=span < spans, other=float("-inf"))
    # Of the tokens with a span's largest logit, those up to this place in it are taken.
    taken = tl.full([PADDED_SPANS], -1, tl.int32)
    place = tl.arange(0, SPAN)
    for turn in range(top):
        value, here = tl.max(largest, 0), tl.argmax(largest, 0)
        token = here * SPAN + place
        logits = _load(logits_row, token, token < vocab_size)
        before = tl.sum(tl.where(span == here, taken, 0), 0)
        first = tl.min(tl.where((logits == value) & (place > before), place, SPAN), 0)
        tl.store(top_ids_ptr + entry * top + turn, here * SPAN + first)
        logprob = tl.where(value > _LEAST, value - total, float("-inf"))
        tl.store(top_logprobs_ptr + entry * top + turn, logprob)
        left = (logits < value) | ((logits == value) & (place > first))
        value_left = tl.max(tl.where(left, logits, float("-inf")), 0)
        largest = tl.where(span == here, value_left, largest)
        taken = tl.where(span == here, tl.where(value_left == value, first, -1), taken)


def row_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The fields of `Logprobs` for `tokens` int64 [n] under logits [n, vocab] of any float type.

    `top` is at most the vocabulary, and each takes a turn of its own. Of equal logits the lower
    token comes first.
    """
    count, vocab_size = logits.shape
    device = logits.device
    parts, spans = triton.cdiv(vocab_size, TOKENS), triton.cdiv(vocab_size, SPAN)

    def floats(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    def integers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    found = (floats(count), integers(count), integers(count, top), floats(count, top))
    left = (floats(count, parts), floats(count, parts), integers(count, parts))
    given = (logits, tokens, *left, floats(count, spans))
    sizes = (logits.stride(0), vocab_size, parts, spans)
    options = launch_options(device)
    _of_parts[(count, parts)](*given, *sizes, TOKENS=TOKENS, SPAN=SPAN, **options)
    _of_rows[(count,)](
        *given,
        *found,
        *sizes,
        top,
        SPAN=SPAN,
        PADDED_PARTS=triton.next_power_of_2(parts),
        PADDED_SPANS=triton.next_power_of_2(spans),
        **options,
    )
    return found
