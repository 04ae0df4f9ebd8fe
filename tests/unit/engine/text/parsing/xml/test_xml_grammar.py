"""Arguments as tags: what the grammar lets through is what the schema asks for."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine_server import EOS, byte_tokenizer

from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.lark import LarkWriter
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.text.parsing.call_grammar import CallBlock, CallGrammar
from kvasir_engine.text.parsing.formats import TOOL_FORMATS
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.xml.xml_grammar import xml_arguments

TOKENIZER = byte_tokenizer()
XML = next(each for each in TOOL_FORMATS if each.name == "qwen3_coder")
GRAMMARS = GuidanceBackend(TOKENIZER, TOKENIZER.backend.get_vocab_size(), [EOS])


def takes(schema: dict[str, Any], *parameters: tuple[str, str]) -> bool:
    """Whether a call may have these parameters."""
    calls = CallGrammar({"f": schema}, Markers(TOKENIZER, ()), one_call=True)
    block = XML.block(calls)
    assert isinstance(block, CallBlock)
    matcher = GRAMMARS.compile(parse_constraint(calls.required(block))).matcher([EOS])
    inside = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters)
    text = f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"
    tokens = [*TOKENIZER.encode(text, add_special_tokens=False), EOS]
    return all(map(matcher.accept, tokens))


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string"}, ["", "a\n<b>\n", " é "], ["</parameter>", "a<parameter=b>"]),
        ({"type": "string", "maxLength": 3}, ["", "abc"], ["abcd"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        ({"type": "string", "pattern": "[0-9]+"}, ["12"], ["", "a"]),
        ({"enum": ["a", 1, None]}, ["a", "1", "null"], ["b", '"a"', " a"]),
        ({"const": "x"}, ["x"], ["y", ""]),
        ({"type": "integer", "minimum": 3}, ["3", "40"], ["2", "x", "3.5"]),
        ({"type": ["string", "null"]}, ["null", "any"], []),
        ({"type": "array", "items": {"type": "integer"}}, ["[1, 2]", "[]"], ["1", '["a"]']),
        ({"$ref": "#/$defs/P"}, ['{"x": 1}'], ["{}", "1"]),
        ({"type": "array", "items": {"$ref": "#/$defs/P"}}, ['[{"x": 1}]'], ["[{}]", "[1]"]),
        ({"type": "array", "items": {"$ref": "#/properties/b"}}, ["[true]"], ["[1]"]),
        ({"type": "string", "minLength": 2}, ["a<", "<b>"], ["a", ""]),
        ({"type": "string", "pattern": "a|</parameter>"}, ["a"], ["</parameter>"]),
        ({"type": ["string", "integer"]}, ["a", "3", "3 a", " 3"], []),
        ({"type": ["string", "integer"], "minimum": 5}, ["a", "7", ""], ["3", "3 a", "-", " a"]),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
            ["a", "", "a[", "[1, 2]", "[]"],
            ['["a"]', "[1,2]", "[a", " [1]"],
        ),
        (
            {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
            ["ab", "null"],
            ["abc"],
        ),
        ({"anyOf": [{"enum": ["a b"]}, {"type": "boolean"}]}, ["a b", "true"], ["a", "null"]),
        ({"enum": [{"a": 1}, "b"]}, ['{"a": 1}', "b"], ['{"a": 2}', "a"]),
        ({"anyOf": [{}, {"type": "integer"}]}, ["a", "1"], []),
    ],
)
def test_values(schema: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    point = {**of(x={"type": "integer"}), "additionalProperties": False}
    root = {**of(a=schema), "$defs": {"P": point}}
    root["properties"]["b"] = {"type": "boolean"}
    assert [value for value in right if not takes(root, ("a", value))] == []
    assert [value for value in wrong if takes(root, ("a", value))] == []


def test_parameters_stand_in_their_order_and_once() -> None:
    schema = {**of(a={"type": "integer"}, b={"type": "integer"}), "required": ["b"]}
    assert takes(schema, ("a", "1"), ("b", "2"))
    assert takes(schema, ("b", "2"))
    assert not takes(schema, ("a", "1"))
    assert not takes(schema, ("b", "2"), ("a", "1"))
    assert not takes(schema, ("b", "2"), ("b", "2"))
    assert not takes(schema, ("b", "2"), ("c", "2"))


def test_a_function_that_names_none_takes_any_unless_it_takes_none() -> None:
    assert takes({}, ("anything", "at all"), ("x", "1"))
    assert takes({})
    assert takes({"type": "object", "additionalProperties": False})
    assert not takes({"type": "object", "additionalProperties": False}, ("x", "1"))


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"additionalProperties": {"type": "integer"}}, [("x", "1")], [("x", "a")]),
        ({"patternProperties": {"^k": {"type": "integer"}}}, [("k", "1")], [("x", "1")]),
        ({"patternProperties": {r"^\d$": {}}}, [("1", "a")], [("\u0663", "a")]),
        ({"anyOf": [of(a={}), of(b={"type": "null"})]}, [("b", "null")], [("b", "a")]),
        ({"properties": {"a b": {}, "c": {}}}, [("c", "d")], [("a b", "d")]),
    ],
)
def test_what_else_says_something_of_parameters(schema: Any, right: Any, wrong: Any) -> None:
    assert [each for each in right if not takes(schema, each)] == []
    assert [each for each in wrong if takes(schema, each)] == []


def test_no_more_parameters_than_there_may_be() -> None:
    assert takes({"maxProperties": 1}, ("a", "1"))
    assert not takes({"maxProperties": 1}, ("a", "1"), ("b", "1"))
    assert takes({"maxProperties": 0})
    assert not takes({"maxProperties": 0}, ("a", "1"))


def test_a_required_name_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(SchemaError, match="#/properties/a b has a name"):
        xml_arguments(LarkWriter(), of(**{"a b": {}}))
