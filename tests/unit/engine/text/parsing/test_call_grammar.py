"""Calls that are enforced: whatever a grammar lets through, the format's own parser reads."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.text.parsing.call_grammar import CallBlock, arguments_schema, strict_schema

from .call_model import FORMATS, Model

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "São Paulo", 'a "b"']},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "metric": {"type": "boolean"},
        "where": {
            "type": "object",
            "properties": {"x": {"type": "string", "maxLength": 4}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "days"],
}
PARAMETERS: dict[str, dict[str, Any] | None] = {"get_weather": WEATHER, "now": None}
MISTRAL = "[TOOL_CALLS] [CALL_ID] [ARGS]"
DRAWS = 25


@cache
def model(name: str, special: bool) -> Model:
    return Model(name, special=special)


def check_calls(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        Draft202012Validator(PARAMETERS[name] or {"maxProperties": 0}).validate(arguments)
        assert arguments.keys() <= WEATHER["properties"].keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_has_to_call_does_and_says_nothing_else(name: str, special: bool) -> None:
    made = model(name, special)
    calls = made.calls(PARAMETERS)
    block = made.format.block(calls)
    assert isinstance(block, CallBlock)
    draw, counts = random.Random(name), set()
    for _ in range(DRAWS):
        output = made.walk(made.matcher(calls.required(block)), draw)
        content, found = made.read(output, PARAMETERS)
        assert content == ""
        check_calls(found)
        counts.add(min(len(found), 2))
    assert counts == {1, 2}


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_is_no_more(name: str) -> None:
    made = model(name, True)
    calls = made.calls({"now": None}, one_call=True)
    block = made.format.block(calls)
    assert isinstance(block, CallBlock)
    draw = random.Random(name)
    for _ in range(DRAWS):
        _, found = made.read(made.walk(made.matcher(calls.required(block)), draw), PARAMETERS)
        assert found == [("now", {})]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_what_begins_as_a_call_is_one_and_other_text_is_free(name: str, special: bool) -> None:
    made = model(name, special)
    calls = made.calls(PARAMETERS)
    block = made.format.block(calls)
    assert isinstance(block, CallBlock)
    form = calls.permitted(block)
    free = made.matcher(form)
    assert all(map(free.accept, made.tokens("No tool is needed, 1 < 2.")))
    assert made.end in made.following(free)
    draw = random.Random(name)
    for _ in range(DRAWS):
        begun = made.matcher(form)
        said = made.opening(block, "now", "Let me see. ")
        assert all(map(begun.accept, said))
        assert made.end not in made.following(begun)
        closed = []
        while made.end not in made.following(begun):
            token = draw.choice(made.following(begun))
            assert begun.accept(token)
            closed.append(token)
        content, found = made.read(said + closed, PARAMETERS)
        assert content == ("Let me see." if block.opener else "")
        assert found
        check_calls(found)


def test_nothing_but_the_marker_itself_begins_a_call_of_special_tokens() -> None:
    made = model("mistral", True)
    calls = made.calls(PARAMETERS)
    block = made.format.block(calls)
    assert isinstance(block, CallBlock)
    [token] = made.tokens("[TOOL_CALLS]")
    matcher = made.matcher(calls.required(block))
    assert set(made.following(matcher)) == {token, made.ids[b"\n"]}
    free = made.matcher(calls.permitted(block))
    spelt = [made.ids[bytes([byte])] for byte in b"[TOOL_CALLS]"]
    assert all(map(free.accept, spelt))
    assert made.end in made.following(free)


def test_a_string_argument_holds_no_special_token() -> None:
    made = model("mistral", True)
    calls = made.calls({"say": {"type": "object", "properties": {"text": {"type": "string"}}}})
    block = made.format.block(calls)
    assert isinstance(block, CallBlock)
    matcher = made.matcher(calls.required(block))
    assert all(map(matcher.accept, made.tokens('[TOOL_CALLS]say[ARGS]{"text": "a')))
    assert max(made.following(matcher)) < 256


@pytest.mark.parametrize(
    ("name", "special", "right", "wrong"),
    [
        ("qwen3_coder", "<tool_call>", ["<function", "<_tool_call>"], ["a <function=f>"]),
        ("qwen3_coder", "", ["<function"], ["a <function=f>", "<tool_call>no"]),
        ("granite", "<|tool_call|>", ["<tool_call"], ["<|tool_call|>x", "a<tool_call>"]),
        ("granite", "", ["<|tool_call|"], ["a<tool_call>", "<|tool_call|>x"]),
        ("phi4_mini_json", "<|tool_call|>", ["function"], ["functools", "a functools[{}]"]),
        ("llama3_json", "", ["", " \n", "a{"], ["\x1c{", " {", '{"a"', "<|python_tag|>"]),
        ("llama3_json", "<|python_tag|>", ["a", "\u2028a"], ["\u2028{", "a<|python_tag|>"]),
        ("mistral", MISTRAL, ["[TOOL_CALLS]now[ARGS]{}\na,"], ["[TOOL_CALLS]now[ARGS]{}\n ,"]),
        ("hermes", "", ["a < b, {"], ["<tool_call>{"]),
        ("pythonic", "", ["", "[1, now]", "[now]", "a [now()]"], ["[now(1", " [ now ("]),
        ("pythonic", "", ["[now()]", "[nowx("], ["[now()] ", "<|python_start|>[now()]"]),
        (
            "pythonic",
            "<|python_start|> <|python_end|>",
            ["a <|python_start|>[now()]<|python_end|>", "[now()]"],
            ["<|python_start|>[x", "[now()]<|python_end|>"],
        ),
        (
            "gemma3",
            "",
            ["```python", "Ok.\n```tool_code\nnow()\nnow()\n``` a", "[now(), now()]"],
            ["[default_api.now(", "[print(now(", "```tool_code\nx"],
        ),
    ],
)
def test_free_text_has_no_other_beginning_of_a_call(
    name: str, special: str, right: list[str], wrong: list[str]
) -> None:
    made = Model(name, special=special.split())
    calls = made.calls(PARAMETERS)
    block = made.format.block(calls)
    assert isinstance(block, CallBlock)
    form = calls.permitted(block)

    def takes(text: str) -> bool:
        return all(map(made.matcher(form).accept, made.tokens(text)))

    assert [text for text in right if not takes(text)] == []
    assert [text for text in wrong if takes(text)] == []


@pytest.mark.parametrize("name", FORMATS)
def test_many_functions_and_deep_schemas_are_within_the_limits(name: str) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    parameters = {f"f{at}": deep if at == 0 else WEATHER for at in range(150)}
    made = model(name, True)
    calls = made.calls(parameters, strict=True)
    block = made.format.block(calls)
    assert isinstance(block, CallBlock)
    for form in (calls.required(block), calls.permitted(block)):
        made.following(made.matcher(form))
    wide = made.calls({f"f{at}": {"properties": {f"a{at}": WEATHER}} for at in range(1024)})
    form = wide.required(made.format.block(wide) or block)
    with pytest.raises(ConstraintError, match="it has more than 131072 bytes"):
        made.matcher(form)


def test_what_a_schema_says_of_arguments_is_kept() -> None:
    found = arguments_schema(WEATHER)
    assert found["additionalProperties"] is False
    assert arguments_schema({"type": "object", "additionalProperties": True, "properties": {}})[
        "additionalProperties"
    ] in (True, {})
    assert arguments_schema(None) == {"type": "object", "additionalProperties": False}
    # Nothing is said of the properties, so any are allowed
    assert "additionalProperties" not in arguments_schema({})


def test_a_schema_that_no_grammar_enforces_is_any_object_unless_it_is_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    assert arguments_schema(schema) == {"type": "object"}
    with pytest.raises(SchemaError, match="#/properties/a/not cannot be enforced"):
        strict_schema(schema)
    with pytest.raises(SchemaError, match="#/type must be object"):
        strict_schema({"type": "string"})
