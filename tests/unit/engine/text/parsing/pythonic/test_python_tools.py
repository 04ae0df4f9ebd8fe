"""Calls in Python's form, at their bounds; the rest is in test_message_parser.py."""

from __future__ import annotations

import pytest
from support.answer_texts import TOOLS, merged

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pythonic.python_tools import (
    MAX_CALL_CHARS,
    MAX_NESTING,
    PythonicTools,
    parsed_call,
)
from kvasir_engine.text.parsing.tool_machine import ToolSet


@pytest.mark.parametrize(
    "text",
    [
        "f",
        "f(1)",
        "f(**x)",
        "f(a=g())",
        "f(a=1, a=2)",
        "f()()",
        "'f'()",
        "f(a=b'x')",
        "f(a={1, 2})",
        "f(a={**b})",
        "f(a=1j)",
        "f(a=1e999)",
        "f(a='\\ud800')",
        "f(a=" + "9" * 5000 + ")",
        "f(a=" + "-" * 100_000 + "1)",
        "f(",
    ],
)
def test_only_a_call_of_literals_is_one(text: str) -> None:
    assert parsed_call(text) is None


def test_a_call_gives_json() -> None:
    assert parsed_call("print(default_api.f(a=[true, None], b={'c': (1, -2.5)}))") == (
        "f",
        '{"a": [true, null], "b": {"c": [1, -2.5]}}',
    )


@pytest.mark.parametrize(
    "text",
    [
        "[now(x=" + "[" * MAX_NESTING + "]" * MAX_NESTING + ")]",
        "[now(x='" + "x" * MAX_CALL_CHARS + "')]",
    ],
    ids=["deep", "long"],
)
def test_a_call_beyond_the_bounds_is_content(tokenizer: Tokenizer, text: str) -> None:
    machine = PythonicTools(ToolSet.of(TOOLS), Markers(tokenizer, ()))
    assert merged([*machine.push(text), *machine.finish()])["content"] == text
