"""Philox4x32-10 in numpy, which torch's is compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvasir_engine.sampling.philox import (
    MASK_32,
    MULTIPLIER_0,
    MULTIPLIER_1,
    ROUNDS,
    WEYL_0,
    WEYL_1,
)

UInt64Array = npt.NDArray[np.uint64]
_MULTIPLIERS = np.array([MULTIPLIER_0, MULTIPLIER_1], dtype=np.uint64)
_ROUND_KEYS = np.arange(ROUNDS, dtype=np.uint64)[:, None] * np.array(
    [WEYL_0, WEYL_1], dtype=np.uint64
)


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
