"""Gumbel noise from stateless Philox bits, on torch tensors of any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_engine.sampling.philox import (
    MASK_32,
    MULTIPLIER_0,
    MULTIPLIER_1,
    PURPOSE_SAMPLE,
    ROUNDS,
    WEYL_0,
    WEYL_1,
)

_LARGEST_UNIFORM = 1.0 - 2.0**-24
"""The largest fp32 below 1: a word near 2^32 would round to 1 and its noise to -infinity."""


@dataclass(slots=True)
class NoiseKeys:
    """Keys of the noise of each sampled token; int64 [rows] tensors of 32-bit values."""

    seed_low: Tensor
    seed_high: Tensor
    position: Tensor
    sample_index: Tensor


def philox_torch(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four words of each counter under its key: int64 tensors of 32-bit values that
    broadcast."""
    c0, c1, c2, c3 = counter
    for k0, k1 in zip(_round_keys(key[0], WEYL_0), _round_keys(key[1], WEYL_1), strict=True):
        high0, low0 = _multiply(MULTIPLIER_0, c0)
        high1, low1 = _multiply(MULTIPLIER_1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _round_keys(word: Tensor, weyl: int) -> tuple[Tensor, ...]:
    """The key word of every round, made at once: a few launches instead of two a round."""
    steps = torch.arange(ROUNDS, device=word.device).view(-1, *[1] * word.dim()) * weyl
    return ((word + steps) & MASK_32).unbind(0)


def _multiply(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 x 32 bit product, without overflowing int64.

    With m' = m - 2^32 (negative, below 2^30 in magnitude) m * w = m' * w + 2^32 * w: the first
    term fits in a signed 64-bit word, and the second only adds w to the high half.
    """
    product = word * (multiplier - (1 << 32))
    return (product >> 32) + word, product & MASK_32


def gumbel_noise(
    keys: NoiseKeys, vocab_size: int, purpose: int = PURPOSE_SAMPLE, *, first: int = 0
) -> Tensor:
    """Standard Gumbel noise of tokens `first` to `first + vocab_size`, fp32 [rows, vocab_size].

    Token v takes word v % 4 of the Philox block with counter (v // 4, position, purpose,
    sample_index) under the 64-bit seed as key. `first` is a multiple of 4.
    """
    device = keys.position.device
    quads = torch.arange(first // 4, (first + vocab_size + 3) // 4, device=device).unsqueeze(0)
    words = philox_torch(
        (
            quads,
            keys.position.unsqueeze(1),
            torch.full((1, 1), purpose, dtype=torch.int64, device=device),
            keys.sample_index.unsqueeze(1),
        ),
        (keys.seed_low.unsqueeze(1), keys.seed_high.unsqueeze(1)),
    )
    bits = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]
    return gumbel_from_bits(bits)


def gumbel_from_bits(bits: Tensor) -> Tensor:
    """Map 32-bit words to Gumbel noise -log(-log(1 - v)) with v = (word + 0.5) / 2^32, fp32.

    log1p keeps v's full relative precision near 0, where the noise is largest: noise ranges over
    -2.8 .. 22.9 instead of stopping at 16.6, so that rare tokens keep their probability.
    """
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_UNIFORM)
    return uniform.neg_().log1p_().neg_().log_().neg_()
