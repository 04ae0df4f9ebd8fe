"""Parts of a schema that refer to others stand alone."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from kvasir_engine.grammar.schema_part import standalone

ROOT: dict[str, Any] = {
    "properties": {
        "whole": {"$ref": "#"},
        "list": {"type": "array", "items": {"$ref": "#/properties/count"}},
        "count": {"type": "integer"},
        "data": {"enum": [{"$ref": "#/none"}]},
        "named": {"properties": {"$ref": {"$ref": "#/$defs/a"}}},
    },
    "required": ["count"],
    "$defs": {"a": {"type": "null"}},
}


def valid(name: str, value: Any) -> bool:
    return Draft202012Validator(standalone(ROOT, ROOT["properties"][name])).is_valid(value)


def test_references_lead_to_where_they_did() -> None:
    assert valid("whole", {"count": 1, "whole": {"count": 2}})
    assert not valid("whole", {"count": 1, "whole": {}})
    assert valid("list", [1])
    assert not valid("list", ["a"])
    assert valid("named", {"$ref": None})
    assert not valid("named", {"$ref": 1})


def test_what_refers_to_nothing_stays_as_it_is() -> None:
    for name in ("count", "data"):
        assert standalone(ROOT, ROOT["properties"][name]) == ROOT["properties"][name]
