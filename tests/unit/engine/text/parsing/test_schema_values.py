from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.text.parsing.schema_values import is_text, json_of, resolved


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
    ],
)
def test_a_value_is_what_its_schema_allows(text: str, schema: dict[str, Any], made: str) -> None:
    assert json_of(text, schema) == made


def test_a_control_character_in_a_string_is_escaped() -> None:
    assert json_of('{"a":\n"b\tc"}', {"type": "object"}) == '{"a": "b\\tc"}'


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


def test_a_schema_that_says_nothing_is_one_of_strings() -> None:
    assert is_text({})
    assert is_text({"type": "string"})
    assert not is_text({"type": ["string", "null"]})
    assert not is_text({"oneOf": [{"type": "integer"}]})
