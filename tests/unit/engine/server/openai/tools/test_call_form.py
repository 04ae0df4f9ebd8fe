"""The form of answers that have to call, or whose calls are held to a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engine_server import byte_tokenizer

from kvasir_engine.grammar.constraint import ConstraintKind, parse_constraint
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.server.openai.tools.call_form import call_form
from kvasir_engine.text.parsing.message_parser import Parsing

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **fields}}


TOOLS = [tool("weather"), tool("now")]
STRICT = [tool("weather"), tool("now", strict=True)]
NAMED = {"type": "function", "function": {"name": "now"}}


def form(parser: str = "hermes", **fields: Any) -> str | None:
    body = ChatBody(messages=[], **fields)
    parsing = Parsing.choose(byte_tokenizer(), None, tools=parser, reasoning="none")
    return call_form(body, parsing)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"tools": STRICT, "tool_choice": "none"},
    ],
)
def test_other_answers_have_no_form(fields: dict[str, Any]) -> None:
    assert form(**fields) is None


@pytest.mark.parametrize(
    ("fields", "functions", "several"),
    [
        ({"tool_choice": "required"}, {"weather", "now"}, True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"weather", "now"}, False),
        ({"tool_choice": NAMED}, {"now"}, False),
    ],
)
def test_calls_that_are_asked_for_are_the_whole_answer(
    fields: dict[str, Any], functions: set[str], several: bool
) -> None:
    made = form(tools=TOOLS, **fields)
    assert made is not None
    assert parse_constraint(made).kind is ConstraintKind.STRUCTURAL_TAG
    assert {
        name for name in ("weather", "now") if f'"{name}' in made.replace("\\", "")
    } == functions
    assert ('"plus"' in made) is several
    assert "triggered" not in made


def test_strict_functions_leave_other_text_free() -> None:
    made = form(tools=STRICT)
    assert made is not None
    tag = json.loads(made)["structural_tag"]["format"]
    assert (tag["type"], tag["triggers"]) == ("triggered_tags", ["<tool_call>"])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": STRICT}, "tools[1].function.strict"),
    ],
)
def test_a_format_that_cannot_be_enforced_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError, match="in the format pythonic; use tool_choice auto") as refused:
        form("pythonic", **fields)
    assert refused.value.param == field
