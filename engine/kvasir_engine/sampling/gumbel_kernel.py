"""Device functions: temperature-scaled logits and Gumbel noise equal to sampling.gumbel."""

from __future__ import annotations

import triton
import triton.language as tl


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
def gumbel_of_quads(
    quad, ints_row, position,
    PURPOSE: tl.constexpr, QUADS: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    """Noise of the 4 tokens of each `quad` [QUADS]; `ints_row` points to the row's seed and sample
    index."""
    low, high = tl.load(ints_row).to(tl.uint64), tl.load(ints_row + 1).to(tl.uint64)
    zeros = (quad * 0).to(tl.uint32)
    at, sample = zeros + position.to(tl.uint32), zeros + tl.load(ints_row + 2).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(low | (high << 32), quad.to(tl.uint32), at, zeros + PURPOSE, sample)
    return _gumbel(tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(QUADS * 4), ON_GPU)


@triton.jit
def scaled_logits(logits_row, first, vocab_size, temperature, TOKENS: tl.constexpr):
    token = first + tl.arange(0, TOKENS)
    inside = token < vocab_size
    logits = tl.load(logits_row + token, mask=inside, other=float("-inf")).to(tl.float32)
    return logits / temperature
