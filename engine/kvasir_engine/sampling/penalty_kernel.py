"""Penalties in one pass: each logit and each count is read once, each penalised logit written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.sampling.penalties import IN_PROMPT, PenaltyCounts
from kvasir_engine.sampling.sampling_state import SamplingTables

TOKENS = 4096
"""Tokens a program."""


@triton.jit
def _penalise(
    logits_ptr,
    rows_ptr,
    counts_ptr,
    floats_ptr,
    out_ptr,
    stride,
    vocab_size,
    FLOATS: tl.constexpr,
    IN_PROMPT: tl.constexpr,
    TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):
    entry, part = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    row = tl.load(rows_ptr + entry)
    token = part * TOKENS + tl.arange(0, TOKENS)
    inside = token < vocab_size
    logits = tl.load(logits_ptr + entry.to(tl.int64) * stride + token, mask=inside).to(tl.float32)
    floats = floats_ptr + row * FLOATS
    repetition, presence = tl.load(floats + 3), tl.load(floats + 4)
    frequency = tl.load(floats + 5)
    # A row without penalties has counts of whoever had it before.
    if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
        counts = tl.load(counts_ptr + row * vocab_size + token, mask=inside, other=0)
        factor = tl.where(counts != 0, repetition, 1.0)
        logits = tl.where(logits > 0, logits / factor, logits * factor)
        outputs = counts & (IN_PROMPT - 1)
        logits -= frequency * outputs.to(tl.float32)
        logits -= tl.where(outputs > 0, presence, 0.0)
    tl.store(out_ptr + entry.to(tl.int64) * vocab_size + token, logits, mask=inside)


def penalise(
    logits: torch.Tensor, rows: torch.Tensor, counts: PenaltyCounts, tables: SamplingTables
) -> torch.Tensor:
    """Penalised logits fp32 [n, vocab] of `rows` int64 [n], from logits of any float type: a new
    tensor, in which a row without penalties has its logits as they are."""
    count, vocab_size = logits.shape
    out = torch.empty((count, vocab_size), dtype=torch.float32, device=logits.device)
    _penalise[(count, triton.cdiv(vocab_size, TOKENS))](
        logits,
        rows,
        counts.by_row,
        tables.floats,
        out,
        logits.stride(0),
        vocab_size,
        FLOATS=tables.floats.shape[1],
        IN_PROMPT=IN_PROMPT,
        TOKENS=TOKENS,
        **launch_options(logits.device),
    )
    return out
