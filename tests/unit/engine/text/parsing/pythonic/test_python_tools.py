"""Calls in Python's form, at their bounds; the rest is in test_message_parser.py."""

from __future__ import annotations

import pytest
from support.answer_texts import TOOLS, merged

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pieces import Kind, Piece
from kvasir_engine.text.parsing.pythonic.python_reader import MAX_HELD_CHARS
from kvasir_engine.text.parsing.pythonic.python_tools import Gemma3Tools, PythonicTools
from kvasir_engine.text.parsing.pythonic.python_values import MAX_NESTING
from kvasir_engine.text.parsing.tool_machine import ToolSet


@pytest.mark.parametrize(
    "text",
    [
        "[now(x=" + "[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1) + ")]",
        "[now(x=[" + "1," * (MAX_HELD_CHARS // 2) + "])]",
        "[" + "n" * 1000 + "()]",
        "[now(" + "x" * 1000 + "=1)]",
    ],
    ids=["deep", "long", "name", "key"],
)
def test_a_call_beyond_the_bounds_is_content(tokenizer: Tokenizer, text: str) -> None:
    machine = PythonicTools(ToolSet.of(TOOLS), Markers(tokenizer, ()))
    assert merged([*machine.push(text), *machine.finish()])["content"] == text


def test_a_string_is_given_out_as_it_comes(tokenizer: Tokenizer) -> None:
    machine = PythonicTools(ToolSet.of(TOOLS), Markers(tokenizer, ()))
    pieces = machine.push("[get_weather(city='Os")
    assert merged(pieces)["calls"] == [["get_weather", '{"city": "Os', False]]
    assert machine.push("lo', days=") == [Piece(Kind.ARGUMENTS, 'lo"')]
    assert machine.push("1") == []
    assert machine.push(",") == [Piece(Kind.ARGUMENTS, ', "days": 1')]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("```tool_code\nprint(default_api.now())\n```", [["now", "{}", True]]),
        ("```tool_code\nprint(print(now()))\n```", []),
        ("```tool_code\nprint(now())\nnow()```", [["now", "{}", True], ["now", "{}", True]]),
        ("[print(now()), default_api.now()]", [["now", "{}", True], ["now", "{}", True]]),
        ("```tool_code\nprint(1)\n```", []),
    ],
)
def test_what_gemma_writes_around_a_call_is_left_out(
    tokenizer: Tokenizer, text: str, calls: list[list[object]]
) -> None:
    machine = Gemma3Tools(ToolSet.of(TOOLS), Markers(tokenizer, ()))
    made = merged([*machine.push(text), *machine.finish()])
    assert made["calls"] == calls
    assert made["content"] == ("" if calls else text)


@pytest.mark.parametrize("size", [1000, MAX_HELD_CHARS, 10**6])
def test_the_bound_of_a_value_does_not_depend_on_the_cuts(tokenizer: Tokenizer, size: int) -> None:
    text = "[now(a=1, b=['" + "x" * (MAX_HELD_CHARS + 5) + "'])]"
    machine = PythonicTools(ToolSet.of(TOOLS), Markers(tokenizer, ()))
    pieces = [
        piece for at in range(0, len(text), size) for piece in machine.push(text[at : at + size])
    ]
    made = merged([*pieces, *machine.finish()])
    assert made["calls"] == [["now", '{"a": 1', False]]
    assert made["content"] == "xxxxxxx'])]"
