"""Tokens of the reasoning, by its markers or by its share of the text."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.server.openai_responses.reasoning_tokens import reasoning_tokens
from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.reasoning import PromptEnd

UNITS = {Kind.REASONING: 30, Kind.CONTENT: 10, Kind.CALL: 0}


class Formats:
    """Stand for Parsing: reasoning between two tokens, or between longer markers."""

    def __init__(self, thinking: Thinking | None) -> None:
        self._thinking = thinking

    def enclosing(self, tokenizer: Any) -> tuple[str, str] | None:
        return None if self._thinking is None else ("<think>", "</think>")

    def thinking(self, tokenizer: Any, prompt_end: Any, pair: tuple[str, str]) -> Thinking | None:
        assert pair == self.enclosing(tokenizer)
        return self._thinking


def counted(ids: list[int], formats: Any, units: dict[Kind, int] = UNITS) -> int:
    tokenizer: Any = None
    return reasoning_tokens(ids, units, formats, tokenizer, PromptEnd())


MARKED = Formats(Thinking(1, 2, opened=False))


@pytest.mark.parametrize(
    ("ids", "formats", "expected"),
    [
        ([1, 5, 5, 2, 7], MARKED, 4),
        ([1, 5, 5], MARKED, 3),
        ([5] * 8, Formats(None), 6),
        ([5] * 8, None, 0),
    ],
)
def test_they_end_with_the_closing_marker(ids: list[int], formats: Any, expected: int) -> None:
    assert counted(ids, formats) == expected


def test_an_answer_without_reasoning_has_none() -> None:
    assert counted([5, 2, 5], MARKED, {**UNITS, Kind.REASONING: 0}) == 0
