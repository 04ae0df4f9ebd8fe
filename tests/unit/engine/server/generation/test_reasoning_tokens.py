"""Tokens of the reasoning, by its markers or by its share of the text."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.server.generation.reasoning_tokens import ReasoningTokens, closing_token
from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.reasoning import PromptEnd

UNITS = {Kind.REASONING: 30, Kind.CONTENT: 10}


class Formats:
    """Stand for Parsing: reasoning between two tokens, or between longer markers."""

    def __init__(self, thinking: Thinking | None, pair: tuple[str, str] | None) -> None:
        self._thinking = thinking
        self._pair = pair

    def enclosing(self, tokenizer: Any) -> tuple[str, str] | None:
        return self._pair

    def thinking(self, tokenizer: Any, prompt_end: Any, pair: tuple[str, str]) -> Thinking | None:
        assert pair == self._pair
        return self._thinking


MARKERS = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("thinking", "pair", "expected"),
    [
        (Thinking(1, 2, opened=False), MARKERS, 2),
        (None, MARKERS, None),
        (None, None, None),
    ],
)
def test_the_closing_token_is_that_of_the_markers(
    thinking: Thinking | None, pair: tuple[str, str] | None, expected: int | None
) -> None:
    formats: Any = Formats(thinking, pair)
    tokenizer: Any = None
    assert closing_token(formats, tokenizer, PromptEnd()) == expected


@pytest.mark.parametrize(
    ("ids", "closer", "expected"),
    [([1, 5, 5, 2, 7], 2, 4), ([1, 5, 5], 2, 3), ([5] * 8, None, 6)],
)
def test_they_end_with_the_closing_token(ids: list[int], closer: int | None, expected: int) -> None:
    assert ReasoningTokens(closer).count(ids, UNITS) == expected


def test_an_answer_without_reasoning_has_none() -> None:
    assert ReasoningTokens(2).count([5, 2, 5], {Kind.CONTENT: 30}) == 0
    assert ReasoningTokens(None).count([], {}) == 0


def test_a_growing_answer_is_counted_like_a_whole_one() -> None:
    ids = [1, 5, 5, 2, 7, 2, 7]
    growing = ReasoningTokens(2)
    for end in range(len(ids) + 1):
        assert growing.count(ids[:end], UNITS) == ReasoningTokens(2).count(ids[:end], UNITS)


def test_the_end_of_a_reasoning_that_has_shown_nothing_yet_is_found_later() -> None:
    growing = ReasoningTokens(2)
    assert growing.count([1], {}) == 0
    assert growing.count([1, 5], {Kind.REASONING: 1}) == 2
    assert growing.count([1, 5, 2, 6], UNITS) == 3
