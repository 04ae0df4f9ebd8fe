"""Philox4x32-10 against Random123's known answers."""

import numpy as np
import pytest

from kvasir_engine.sampling.philox import MASK_32, split_seed

from .numpy_philox import philox

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK_32,) * 4, (MASK_32,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter, key, expected):
    words = philox(np.array(counter, dtype=np.uint64), np.array(key, dtype=np.uint64))
    assert tuple(words.tolist()) == expected


def test_counters_and_keys_broadcast():
    counters = np.random.default_rng(0).integers(0, 2**32, (4, 6, 1), dtype=np.uint64)
    keys = np.random.default_rng(1).integers(0, 2**32, (2, 1, 3), dtype=np.uint64)
    together = philox(counters, keys)
    assert together.shape == (4, 6, 3)
    for i in range(6):
        for j in range(3):
            alone = philox(counters[:, i, 0], keys[:, 0, j])
            assert together[:, i, j].tolist() == alone.tolist()


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (0, (0, 0)),
        (2**63 - 1, (MASK_32, 0x7FFFFFFF)),
        (-1, (MASK_32, MASK_32)),
        (-(2**63), (0, 0x80000000)),
        (2**64 + 5, (5, 0)),
    ],
)
def test_seeds_are_taken_modulo_2_to_the_64(seed, words):
    assert split_seed(seed) == words
