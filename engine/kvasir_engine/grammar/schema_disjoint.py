"""Schemas that no value satisfies together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from kvasir_engine.grammar.schema_keywords import has_type

_BROAD = ("string", "number", "boolean", "null", "array", "object")


def all_disjoint(schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if it is plain that no value satisfies two of the schemas."""
    values = [each["enum"] for each in schemas if "enum" in each]
    pool = [value for each in values for value in each]
    if len(set(map(_frozen, pool))) < sum(len(set(map(_frozen, each))) for each in values):
        return False
    # All branches that are values, of which there may be many, are compared as one.
    left = [each for each in schemas if "enum" not in each]
    left += [{"enum": pool}] if pool else []
    return all(are_disjoint(one, other) for at, one in enumerate(left) for other in left[at + 1 :])


def num_compared(schemas: Sequence[Mapping[str, Any]]) -> int:
    """Return how many of the schemas are compared with each other."""
    return sum("enum" not in each for each in schemas)


def are_disjoint(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if it is plain that no value satisfies both."""
    if "enum" in one and "enum" in other:
        return set(map(_frozen, one["enum"])).isdisjoint(map(_frozen, other["enum"]))
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


def _frozen(value: Any) -> Hashable:
    """Return what is equal for equal values."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return frozenset((name, _frozen(each)) for name, each in value.items())
    return value  # type: ignore[no-any-return]
