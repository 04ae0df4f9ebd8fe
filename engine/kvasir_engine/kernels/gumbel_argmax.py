"""Samples a token a row in one pass over the logits: arg max of logits / temperature + noise.

The arg max under Gumbel noise is a draw from the softmax (Gumbel, 1954), so no softmax, no sort
and no cumulative sum is needed. The noise is that of `runner.gumbel`: word v % 4 of the
Philox4x32-10 block with counter (v // 4, position, purpose, sample index).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.runner.gumbel import NoiseKeys
from kvasir_engine.runner.philox import PURPOSE_SAMPLE

QUADS = 1024
"""Philox blocks of one program: 4096 tokens."""


@triton.jit
def _gumbel(words):
    """-log(-log(1 - v)) of v = (word + 0.5) / 2^32, precise near v = 0 where the noise is large."""
    v = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = tl.minimum(v, 0.99999994)
    small = v * (1.0 + v * (0.5 + v * (0.33333333 + v * 0.25)))
    return -tl.log(tl.where(v < 0.01, small, -tl.log(1.0 - v)))


@triton.jit
def _best_of_part(
    logits_ptr,
    temperature_ptr,
    random_ptr,
    seed_low_ptr,
    seed_high_ptr,
    position_ptr,
    sample_index_ptr,
    value_ptr,
    token_ptr,
    stride,
    vocab_size,
    parts,
    PURPOSE: tl.constexpr,
    QUADS: tl.constexpr,
):
    entry, part = tl.program_id(0), tl.program_id(1)
    quad = part * QUADS + tl.arange(0, QUADS)
    token = part * QUADS * 4 + tl.arange(0, QUADS * 4)
    logits = tl.load(
        logits_ptr + entry.to(tl.int64) * stride + token,
        mask=token < vocab_size,
        other=float("-inf"),
    ).to(tl.float32)
    if tl.load(random_ptr + entry) != 0:
        low = tl.load(seed_low_ptr + entry).to(tl.uint64)
        seed = low | (tl.load(seed_high_ptr + entry).to(tl.uint64) << 32)
        zeros = (quad * 0).to(tl.uint32)
        position = zeros + tl.load(position_ptr + entry).to(tl.uint32)
        sample = zeros + tl.load(sample_index_ptr + entry).to(tl.uint32)
        w0, w1, w2, w3 = tl.philox(seed, quad.to(tl.uint32), position, zeros + PURPOSE, sample)
        words = tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(QUADS * 4)
        logits = logits / tl.load(temperature_ptr + entry) + _gumbel(words)
    tl.store(value_ptr + entry * parts + part, tl.max(logits, 0))
    tl.store(token_ptr + entry * parts + part, part * QUADS * 4 + tl.argmax(logits, 0))


def gumbel_argmax(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    random: torch.Tensor,
    keys: NoiseKeys,
    *,
    quads: int = QUADS,
) -> torch.Tensor:
    """A token for each row, int64 [n].

    logits [n, vocab] of any float type, `temperature` [n] fp32, read where `random` [n] is not 0;
    elsewhere the most likely token is taken. All contiguous but for the rows of logits.
    """
    count, vocab_size = logits.shape
    parts = triton.cdiv(vocab_size, quads * 4)
    values = torch.empty((count, parts), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((count, parts), dtype=torch.int64, device=logits.device)
    _best_of_part[(count, parts)](
        logits,
        temperature,
        random,
        keys.seed_low,
        keys.seed_high,
        keys.position,
        keys.sample_index,
        values,
        tokens,
        logits.stride(0),
        vocab_size,
        parts,
        PURPOSE=PURPOSE_SAMPLE,
        QUADS=quads,
    )
    if parts == 1:
        return tokens[:, 0]
    return tokens.gather(1, values.argmax(1, keepdim=True))[:, 0]
