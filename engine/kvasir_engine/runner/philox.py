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

_MULTIPLIERS = np.array([MULTIPLIER_0, MULTIPLIER_1], dtype=np.uint64)
_ROUND_KEYS = np.arange(ROUNDS, dtype=np.uint64)[:, None] * np.array(
    [WEYL_0, WEYL_1], dtype=np.uint64
)

PURPOSE_SAMPLE = 0
"""The counter's third word: what the bits are for. Further purposes never share bits with it."""


def split_seed(seed: int) -> tuple[int, int]:
    """The key's two 32-bit words, low first. Negative seeds are taken modulo 2^64."""
    return seed & MASK_32, (seed >> 32) & MASK_32


def philox(counter: UInt64Array, key: UInt64Array) -> UInt64Array:
    """Four 32-bit words [4, ...] for each counter [4, ...] under its key [2, ...].

    Words are 32-bit values in uint64 arrays; counter and key have as many axes and broadcast.
    The two halves of the state go through each round as one array, which halves the calls.
    """
    if counter.size == 4 and key.size == 2:
        # A batch of one: Python's integers are ten times as fast as arrays of one element.
        words = _one(*counter.ravel().tolist(), *key.ravel().tolist())
        return np.array(words, dtype=np.uint64).reshape(counter.shape)
    mask, shift = np.uint64(MASK_32), np.uint64(32)
    rest = [1] * (counter.ndim - 1)
    multipliers = _MULTIPLIERS.reshape(2, *rest)
    keys = (key + _ROUND_KEYS.reshape(ROUNDS, 2, *rest)) & mask
    even, odd = counter[0::2], counter[1::2]
    for round_key in keys:
        product = multipliers * even
        even = (product >> shift)[::-1] ^ odd ^ round_key
        odd = (product & mask)[::-1]
    return np.stack(np.broadcast_arrays(even[0], odd[0], even[1], odd[1]))


def _one(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    for _ in range(ROUNDS):
        p0, p1 = MULTIPLIER_0 * c0, MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK_32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK_32
        k0, k1 = (k0 + WEYL_0) & MASK_32, (k1 + WEYL_1) & MASK_32
    return c0, c1, c2, c3
