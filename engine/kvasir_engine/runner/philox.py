"""Philox4x32-10, the counter-based random generator of every sampled token, in numpy.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Stateless: the bits are a
function of key and counter alone, so a token's randomness depends on neither its batch nor on
what was drawn before. `gumbel.py` has the same function on torch tensors.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

UInt64Array: TypeAlias = npt.NDArray[np.uint64]

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
MASK_32 = 0xFFFFFFFF
ROUNDS = 10

PURPOSE_SAMPLE = 0
"""The counter's third word: what the bits are for. Further purposes never share bits with it."""


def split_seed(seed: int) -> tuple[int, int]:
    """The key's two 32-bit words, low first. Negative seeds are taken modulo 2^64."""
    return seed & MASK_32, (seed >> 32) & MASK_32


def philox(
    counter: tuple[UInt64Array, UInt64Array, UInt64Array, UInt64Array],
    key: tuple[UInt64Array, UInt64Array],
) -> tuple[UInt64Array, UInt64Array, UInt64Array, UInt64Array]:
    """Four 32-bit words for each counter, in uint64 arrays; all inputs broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    mask, shift = np.uint64(MASK_32), np.uint64(32)
    for _ in range(ROUNDS):
        p0 = np.uint64(MULTIPLIER_0) * c0
        p1 = np.uint64(MULTIPLIER_1) * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & mask, (p0 >> shift) ^ c3 ^ k1, p0 & mask
        k0 = (k0 + np.uint64(WEYL_0)) & mask
        k1 = (k1 + np.uint64(WEYL_1)) & mask
    return c0, c1, c2, c3
