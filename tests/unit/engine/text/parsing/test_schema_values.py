from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.text.parsing.schema_values import (
    ValueForm,
    json_of,
    parameter_schema,
    resolved,
)


@pytest.mark.parametrize(
    ("text", "schema", "made"),
    [
        ("3", {"type": "integer"}, "3"),
        (" 3 ", {"type": "number"}, "3"),
        ("3.5", {"type": "integer"}, '"3.5"'),
        ("true", {"type": "integer"}, '"true"'),
        ("False", {"type": "boolean"}, "false"),
        ("null", {"type": ["string", "null"]}, "null"),
        ("3", {"type": ["string", "null"]}, '"3"'),
        ("[1, 2", {"type": "array"}, '"[1, 2"'),
        ('{"a": 1}', {"anyOf": [{"type": "object"}, {"type": "null"}]}, '{"a": 1}'),
        ("9" * 5000, {"type": "integer"}, f'"{"9" * 5000}"'),
        ("", {"type": "integer"}, '""'),
        ("x", {"type": "integer", "anyOf": [7, {"type": 1}]}, '"x"'),
        ("3", {"allOf": [{"type": "integer"}, {"minimum": 1}]}, "3"),
        ("3", {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}, "3"),
        ("null", {"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, '"null"'),
        ("3", {"allOf": [{"type": "number"}, {"type": "integer"}]}, "3"),
        ("3", {"enum": [3, 4]}, "3"),
        ("3", {"enum": ["3", 4]}, '"3"'),
        ("4", {"enum": ["3", 4]}, "4"),
        ('{"a": 1}', {"const": {"a": 1}}, '{"a": 1}'),
        ("3", {"anyOf": [{"enum": ["3"]}, {"type": "integer"}]}, '"3"'),
        ("3.5", {"const": 3.5}, "3.5"),
        ("true", {"enum": [1, True]}, "true"),
        ('{"a": 1}', {"properties": {"a": {}}}, '{"a": 1}'),
        ("3", {"minimum": 1}, "3"),
        ("3", {"allOf": [{"minimum": 1}]}, "3"),
        ("3", {"allOf": [{"type": "number"}, {"minLength": 1}]}, "3"),
        ("[3]", {"anyOf": [{"items": {}}, {"type": "null"}]}, "[3]"),
        ("3", {"minLength": 1}, '"3"'),
    ],
)
def test_a_value_is_what_its_schema_allows(text: str, schema: dict[str, Any], made: str) -> None:
    root = {"$defs": {"A": {"type": "integer"}}}
    assert json_of(text, ValueForm.of(root, schema)) == made


def test_a_control_character_in_a_string_is_escaped() -> None:
    assert json_of('{"a":\n"b\tc"}', ValueForm(frozenset({"object"}))) == '{"a": "b\\tc"}'


@pytest.mark.parametrize(
    ("reference", "made"),
    [
        ("#/$defs/a", {"type": "integer"}),
        ("#/$defs/b", {"type": "integer"}),
        ("#/$defs/a~1b", {"type": "null"}),
        ("#/$defs/loop", {"$ref": "#/$defs/loop"}),
        ("#/$defs/none", {}),
        ("other.json#/a", {}),
    ],
)
def test_a_reference_is_followed(reference: str, made: dict[str, Any]) -> None:
    root = {
        "$defs": {
            "a": {"type": "integer"},
            "b": {"$ref": "#/$defs/a"},
            "a/b": {"type": "null"},
            "loop": {"$ref": "#/$defs/loop"},
        }
    }
    assert resolved(root, {"$ref": reference}) == made
    assert resolved(root, {"type": "string"}) == {"type": "string"}
    assert resolved(root, None) == {}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, True),
        (True, True),
        ({"type": "string"}, True),
        ({"enum": ["a", "b"]}, True),
        ({"$ref": "#/$defs/A"}, True),
        ({"type": ["string", "null"]}, False),
        ({"oneOf": [{"type": "integer"}]}, False),
    ],
)
def test_a_schema_that_says_nothing_is_one_of_strings(schema: Any, text: bool) -> None:
    assert ValueForm.of({"$defs": {"A": {"type": "string"}}}, schema).is_text is text


def test_a_schema_of_nothing_but_itself_says_nothing() -> None:
    itself = {"anyOf": [{"$ref": "#/$defs/A"}] * 100, "allOf": [{"$ref": "#/$defs/A"}] * 100}
    assert ValueForm.of({"$defs": {"A": itself}}, {"$ref": "#/$defs/A"}) == ValueForm()


def test_a_long_way_through_choices_is_not_followed_to_its_end() -> None:
    links: dict[str, Any] = {
        f"A{at}": {"anyOf": [{"$ref": f"#/$defs/A{at + 1}"}]} for at in range(5000)
    }
    root = {"$defs": {**links, "A5000": {"enum": [1]}}}
    assert ValueForm.of(root, {"$ref": "#/$defs/A4990"}) == ValueForm(frozenset({"integer"}), (1,))
    assert ValueForm.of(root, {"$ref": "#/$defs/A0"}) == ValueForm()


@pytest.mark.parametrize(
    ("root", "made"),
    [
        ({}, {"anyOf": []}),
        ({"properties": {"a": {"type": "null"}}}, {"type": "null"}),
        ({"properties": {"b": {}}, "additionalProperties": {"type": "null"}}, {"type": "null"}),
        ({"patternProperties": {"^a": {"type": "null"}}}, {"type": "null"}),
        ({"allOf": [{"properties": {"a": {"type": "null"}}}, {}]}, {"type": "null"}),
        (
            {"anyOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"a": {}}}]},
            {"anyOf": [{"type": "null"}, {}]},
        ),
    ],
)
def test_a_parameter_is_found_where_the_schema_says_it(root: Any, made: Any) -> None:
    assert parameter_schema(root, "a") == made
