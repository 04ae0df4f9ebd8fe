"""Philox4x32-10, the counter-based random generator of every sampled token, in numpy.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Stateless: the bits are a
function of key and counter alone, so a token's randomness depends on neither its batch nor on
what was drawn before. Engines draw by the same function on torch tensors (`gumbel.py`) and in
Triton (`gumbel_kernel.py`); this one is what both are compared with, and has their constants.
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
