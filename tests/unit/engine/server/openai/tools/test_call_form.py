"""The form of answers that have to call, or whose calls are held to a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engine_server import EOS, byte_tokenizer

from kvasir_engine.grammar.constraint import ConstraintKind, parse_constraint
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.server.openai.tools.call_form import CallForm, call_form
from kvasir_engine.text.parsing.formats import HARMONY_REASONING, HARMONY_TOOLS
from kvasir_engine.text.parsing.message_parser import Parsing

TOKENIZER = byte_tokenizer()
GRAMMARS = GuidanceBackend(TOKENIZER, TOKENIZER.backend.get_vocab_size(), [EOS])
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **fields}}


TOOLS = [tool("weather"), tool("now")]
STRICT = [tool("weather"), tool("now", strict=True)]
NAMED = {"type": "function", "function": {"name": "now"}}


def form(parser: str = "hermes", *, asked: bool = True, **fields: Any) -> str | None:
    made = made_form(parser, **fields)
    assert made is None or made.is_asked is asked
    return made and made.form


def made_form(parser: str, *, beside: str | None = None, **fields: Any) -> CallForm | None:
    body = ChatBody(messages=[], **fields)
    reasoning = HARMONY_REASONING if parser == HARMONY_TOOLS else "none"
    parsing = Parsing.choose(TOKENIZER, None, tools=parser, reasoning=reasoning)
    return call_form(body, parsing, beside)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": STRICT, "tool_choice": "none"},
    ],
)
def test_other_answers_have_no_form(fields: dict[str, Any]) -> None:
    assert form(**fields) is None


def call(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "Oslo"}}}}\n</tool_call>'


def takes(made: str | None, text: str) -> bool:
    """Whether an answer of this form may be `text`."""
    assert made is not None
    constraint = parse_constraint(made)
    assert constraint.kind is ConstraintKind.LARK
    matcher = GRAMMARS.compile(constraint).matcher([EOS])
    return all(map(matcher.accept, [*TOKENIZER.encode(text, add_special_tokens=False), EOS]))


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
    assert {name for name in ("weather", "now") if takes(made, call(name))} == functions
    assert takes(made, call("now") * 2) is several
    assert not takes(made, f"Well, {call('now')}")
    assert not takes(made, "")


def test_strict_functions_leave_other_text_free() -> None:
    made = form(tools=STRICT)
    assert takes(made, "Well.")
    assert takes(made, f"Well, {call('now')} and {call('weather')}.")
    assert not takes(made, f"Well, {call('other')}")
    assert not takes(made, call("now").replace('"Oslo"', "1"))
    one = form(tools=STRICT, parallel_tool_calls=False)
    assert takes(one, f"Well, {call('now')}")
    assert not takes(one, call("now") * 2)


AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "additionalProperties": False}
PERSON = json.dumps({"json": AGE})


def test_beside_a_form_an_answer_calls_or_has_it() -> None:
    made = form(tools=TOOLS, beside=PERSON)
    assert takes(made, '{"age": 3}')
    assert takes(made, call("now") + call("weather"))
    assert not takes(made, '{"age": "3"}')
    assert not takes(made, "Well.")
    assert not takes(made, f'{{"age": 3}}{call("now")}')
    assert not takes(made, call("other"))
    one = form(tools=TOOLS, parallel_tool_calls=False, beside=PERSON)
    assert takes(one, '{"age": 3}')
    assert not takes(one, call("now") * 2)


@pytest.mark.parametrize(
    ("beside", "right", "wrong"),
    [
        ({"json_object": True}, '{"a": [1]}', "[1]"),
        ({"regex": "[0-9]+"}, "42", "4 2"),
        ({"choice": ["yes", "no"]}, "no", "maybe"),
        ({"lark": 'start: word+\nword: "a" | "b"'}, "abba", "c"),
    ],
)
def test_forms_beside_calls(beside: Any, right: str, wrong: str) -> None:
    made = form(tools=STRICT, beside=json.dumps(beside))
    assert takes(made, right)
    assert takes(made, call("now"))
    assert not takes(made, wrong)
    assert not takes(made, call("now").replace('"Oslo"', "1"))


def test_calls_that_are_asked_for_leave_no_place_for_a_form() -> None:
    made = form(tools=TOOLS, tool_choice="required", beside=PERSON)
    assert takes(made, call("now"))
    assert not takes(made, '{"age": 3}')


@pytest.mark.parametrize("parser", ["llama3_json", "pythonic", "gemma3"])
def test_calls_without_a_marker_go_with_no_form(parser: str) -> None:
    assert form(parser, tools=TOOLS, beside=PERSON) is None


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}])
def test_what_begins_as_a_call_is_one_where_nobody_asks(fields: dict[str, Any]) -> None:
    made = form(tools=TOOLS, asked=False, **fields)
    assert takes(made, f"Well, {call('now')} and {call('weather')}.")
    assert takes(made, call("now").replace('"city": "Oslo"', '"x": [1]'))
    assert not takes(made, call("now").replace('"Oslo"', "Oslo"))
    assert not takes(made, call("other"))
    one = form(tools=TOOLS, asked=False, parallel_tool_calls=False)
    assert not takes(one, call("now") * 2)


@pytest.mark.parametrize(
    ("parser", "right", "wrong"),
    [
        (
            "llama3_json",
            ['{"city": "Oslo"}', '{"name": "Ada"}', '{"name": "now", "parameters": {"a": 1}}'],
            ['{"name": "now"}', '{"name": "now", "parameters": 1}'],
        ),
        (
            "llama3_json",
            [
                '{"type": "function", "name": "now", "parameters": {}}; '
                '{"name": "now", "parameters": {}}'
            ],
            ['{"type": "function", "name": "now"}'],
        ),
        ("pythonic", ["[1]", "[Oslo](x)", "[ now ()]", "[now(a='b', c=[1])]"], ["[now(1)]"]),
    ],
)
def test_only_what_is_sure_to_be_a_call_is_held_to_it(
    parser: str, right: list[str], wrong: list[str]
) -> None:
    made = form(parser, tools=TOOLS, asked=False)
    assert [text for text in right if not takes(made, text)] == []
    assert [text for text in wrong if takes(made, text)] == []


def test_a_format_that_cannot_be_enforced_is_free_where_nobody_asks() -> None:
    assert form(HARMONY_TOOLS, tools=TOOLS) is None


def test_parameters_that_a_format_cannot_write_are_refused_where_they_are_strict() -> None:
    odd = {"properties": {"a b": {}}, "required": ["a b"]}
    tools = [tool("now", strict=True, parameters=odd)]
    with pytest.raises(ApiError, match="#/properties/a b has a name that") as refused:
        form("qwen3_coder", tools=tools)
    assert refused.value.param == "tools[0].function.strict"
    loose = form("qwen3_coder", tools=[tool("now", parameters=odd)], tool_choice="required")
    assert takes(loose, "<tool_call>\n<function=now>\n</function>\n</tool_call>")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": STRICT}, "tools[1].function.strict"),
    ],
)
def test_a_format_that_cannot_be_enforced_is_named(fields: dict[str, Any], field: str) -> None:
    # Its markers are no special tokens of this tokenizer
    with pytest.raises(ApiError, match="in the format openai; use tool_choice auto") as refused:
        form(HARMONY_TOOLS, **fields)
    assert refused.value.param == field
