"""Constants of Philox4x32-10, the counter-based random generator of every sampled token.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Stateless: the bits are a
function of key and counter alone, so a token's randomness depends on neither its batch nor on
what was drawn before. It is computed on torch tensors (`gumbel.py`) and in Triton
(`gumbel_kernel.py`).
"""

from __future__ import annotations

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
MASK_32 = 0xFFFFFFFF
ROUNDS = 10

PURPOSE_SAMPLE = 0
"""The counter's third word: what the bits are for. Further purposes never share bits with it."""


def split_seed(seed: int) -> tuple[int, int]:
    """Return the key's two 32-bit words, low first. Negative seeds are taken modulo 2^64."""
    return seed & MASK_32, (seed >> 32) & MASK_32
