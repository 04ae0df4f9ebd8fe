"""Schemas that no value satisfies together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir_engine.grammar.schema_keywords import has_type

_BROAD = ("string", "number", "boolean", "null", "array", "object")


def are_disjoint(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if it is plain that no value satisfies both."""
    if "enum" in one and "enum" in other:
        return not any(each in other["enum"] for each in one["enum"])
    first, second = _possible_types(one), _possible_types(other)
    if first and second and first.isdisjoint(second):
        return True
    if first != {"object"} or second != {"object"}:
        return False
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    both = {*one.get("required", ())} & {*other.get("required", ())} & mine.keys() & theirs.keys()
    return any("enum" in mine[k] and are_disjoint(mine[k], theirs[k]) for k in both)


def _possible_types(schema: Mapping[str, Any]) -> set[str]:
    """Types of the values that satisfy a schema, an integer being a number; empty = any."""
    if "enum" in schema:
        return {next(t for t in _BROAD if has_type(each, [t])) for each in schema["enum"]}
    given = schema.get("type", [])
    types = [given] if isinstance(given, str) else given
    return {"number" if each == "integer" else each for each in types}
