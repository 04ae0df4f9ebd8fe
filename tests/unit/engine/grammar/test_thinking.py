"""A grammar begins behind the reasoning, where there is some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvasir_engine.grammar.thinking import Thinking, ThinkingMatcher, begin, is_over, num_unmasked

OPEN, CLOSE, ONLY = 40, 41, 7


class OneToken:
    """Grammar, and matcher, of outputs of ONLY."""

    num_accepted = 0

    def matcher(self, stop_ids: Sequence[int]) -> OneToken:
        return OneToken()

    def accept(self, token: int) -> bool:
        self.num_accepted += token == ONLY
        return token == ONLY

    def restart(self) -> None:
        self.num_accepted = 0

    def fill(self, mask: np.ndarray) -> None:
        mask[:] = 0
        mask[0] = 1 << ONLY


def allowed(matcher: ThinkingMatcher) -> list[int]:
    mask = np.zeros(2, dtype=np.int32)
    matcher.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def matcher(*, opened: bool) -> ThinkingMatcher:
    return ThinkingMatcher(OneToken(), Thinking(OPEN, CLOSE, opened))


def test_what_the_prompt_has_opened_is_free_up_to_its_end() -> None:
    made = matcher(opened=True)
    for token in (1, OPEN, 5, CLOSE):
        assert len(allowed(made)) == 64
        assert made.accept(token)
    assert allowed(made) == [ONLY]
    assert not made.accept(CLOSE)
    assert made.accept(ONLY)
    assert made.num_accepted == 5


def test_reasoning_has_no_tokens_that_are_barred() -> None:
    made = ThinkingMatcher(OneToken(), Thinking(OPEN, CLOSE, opened=True), barred=[0, 33])
    assert allowed(made) == [at for at in range(64) if at not in (0, 33)]
    assert made.accept(CLOSE)
    assert allowed(made) == [ONLY]


def test_an_output_may_open_it_or_not() -> None:
    thinks, answers = matcher(opened=False), matcher(opened=False)
    assert allowed(thinks) == [ONLY, OPEN]
    assert thinks.accept(OPEN)
    assert len(allowed(thinks)) == 64
    assert thinks.accept(CLOSE)
    assert allowed(thinks) == [ONLY]
    assert answers.accept(ONLY)
    assert allowed(answers) == [ONLY]
    assert not answers.accept(OPEN)


@pytest.mark.parametrize("opened", [True, False])
def test_it_begins_anew(opened: bool) -> None:
    made = matcher(opened=opened)
    before = allowed(made)
    assert made.accept(OPEN)
    assert made.accept(CLOSE)
    made.restart()
    assert (made.num_accepted, allowed(made)) == (0, before)


def test_without_reasoning_it_is_the_grammars_own_matcher() -> None:
    assert isinstance(begin(OneToken(), [0], None), OneToken)
    assert isinstance(begin(OneToken(), [0], Thinking(OPEN, CLOSE, True)), ThinkingMatcher)


def test_the_last_bit_of_a_word_is_one_too() -> None:
    made = ThinkingMatcher(OneToken(), Thinking(31, CLOSE, opened=False))
    assert allowed(made) == [ONLY, 31]


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("budget", [0, 3])
def test_behind_its_budget_only_the_closer_may_follow(budget: int, opened: bool) -> None:
    made = begin(None, [0], Thinking(OPEN, CLOSE, opened, budget))
    assert isinstance(made, ThinkingMatcher)
    tokens = [*([] if opened else [OPEN]), *range(1, budget + 1)]
    for token in tokens:
        assert len(allowed(made)) == 64
        assert made.accept(token)
    assert num_unmasked(made) == len(tokens)
    assert allowed(made) == [CLOSE]
    assert not is_over(made)
    assert made.accept(CLOSE)
    assert (is_over(made), len(allowed(made))) == (True, 64)
    made.restart()
    assert (is_over(made), made.num_accepted) == (False, 0)


def test_a_grammar_needs_masks_from_the_first_token_to_the_last() -> None:
    made = begin(OneToken(), [0], Thinking(OPEN, CLOSE, opened=True, budget=1))
    assert isinstance(made, ThinkingMatcher)
    assert num_unmasked(made) == num_unmasked(OneToken()) == 0
    for token in (5, CLOSE):
        assert made.accept(token)
    assert allowed(made) == [ONLY]
    assert not is_over(made)
    assert not is_over(OneToken())


def test_an_output_that_begins_otherwise_has_no_budget() -> None:
    made = begin(None, [0], Thinking(OPEN, CLOSE, opened=False, budget=0))
    assert isinstance(made, ThinkingMatcher)
    assert made.accept(5)
    assert is_over(made)


def test_reasoning_without_a_budget_or_a_grammar_needs_no_matcher() -> None:
    assert begin(None, [0], Thinking(OPEN, CLOSE, opened=True)) is None
    assert begin(None, [0], None) is None
