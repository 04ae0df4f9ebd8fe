"""Sizes of masks, and filling one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from kvasir_engine.grammar.matcher import fill_each, num_words


@pytest.mark.parametrize(("vocab", "words"), [(1, 1), (32, 1), (33, 2), (128_256, 4008)])
def test_a_mask_has_a_bit_for_each_token(vocab: int, words: int) -> None:
    assert num_words(vocab) == words


class Odd:
    num_accepted = 0

    def __init__(self, word: int) -> None:
        self.word = word

    def accept(self, token: int) -> bool:
        return True

    def restart(self) -> None:
        """Nothing to forget."""

    def fill(self, mask: np.ndarray) -> None:
        mask[:] = self.word


def test_each_matcher_fills_its_own_mask() -> None:
    masks = np.zeros((2, 3), dtype=np.int32)
    fill_each([Odd(5), Odd(-1)], masks)
    assert masks.tolist() == [[5] * 3, [-1] * 3]
