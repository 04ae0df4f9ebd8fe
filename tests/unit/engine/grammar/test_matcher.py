"""Sizes of masks, and filling them."""

from __future__ import annotations

import numpy as np
import pytest

from kvasir_engine.grammar.matcher import fill_together, num_words, only_tokens


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
    fill_together([Odd(5), Odd(-1)], masks)
    assert masks.tolist() == [[5] * 3, [-1] * 3]


class Even(Odd):
    """One of a library's."""

    calls = 0

    @classmethod
    def fill_own(cls, matchers: list[Odd], masks: np.ndarray) -> None:
        cls.calls += 1
        for at, matcher in enumerate(matchers):
            if type(matcher) is cls:
                masks[at] = 2 * matcher.word


def test_a_librarys_matchers_fill_their_masks_at_once() -> None:
    masks = np.zeros((4, 1), dtype=np.int32)
    fill_together([Even(1), Odd(3), Even(2), Odd(5)], masks)
    assert masks[:, 0].tolist() == [2, 3, 4, 5]
    assert Even.calls == 1


def test_a_mask_with_one_bit_names_its_token() -> None:
    masks = np.zeros((6, 3), dtype=np.int32)
    masks[1, 2] = 1 << 5
    masks[2, 0] = masks[2, 1] = 1
    masks[3, 1] = -(2**31)
    masks[4, 0] = 3
    masks[5] = -1
    set_words = np.count_nonzero(masks, axis=1)
    assert only_tokens(masks, set_words) == {1: 69, 3: 63}
    assert only_tokens(masks[:0], set_words[:0]) == {}
