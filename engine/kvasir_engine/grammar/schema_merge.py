"""Schemas that must hold together, as one schema."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kvasir_engine.grammar.schema_keywords import (
    ANNOTATIONS,
    DEFINITIONS,
    SchemaError,
    expect,
    refuse,
    types_of,
)

MAX_BRANCHES = 2000
"""Branches of one allOf, anyOf or oneOf."""
MAX_STEPS = 500_000
"""Names that merging may look at in one schema."""
STEPS_OF_A_COPY = 10
"""Names that are looked at while a value is copied."""


class MergeBudget:
    """Number of steps that merging may still take for one schema."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int, path: str) -> None:
        """Count steps. Raises SchemaError."""
        self._left -= steps
        if self._left < 0:
            what = "has too many branches for what they are merged with; use fewer of either"
            raise SchemaError(path, what)


def merge_heads(schema: dict[str, Any], path: str, budget: MergeBudget) -> None:
    """Write `allOf`, and what stands beside anyOf or oneOf, as schemas without either."""
    for i, each in enumerate(_branches(schema, "allOf", path)):
        if isinstance(each, dict):
            merge_heads(each, f"{path}/allOf/{i}", budget)
        budget.spend(_num_names(schema), path)
        _merge_into(schema, each, f"{path}/allOf/{i}")
    schema.pop("allOf", None)
    for head in ("anyOf", "oneOf"):
        branches = _branches(schema, head, path)
        beside = {k: v for k, v in schema.items() if k not in (head, *DEFINITIONS)}
        if not branches or not beside:
            continue
        budget.spend(_num_values(beside) * STEPS_OF_A_COPY * len(branches), f"{path}/{head}")
        for i, each in enumerate(branches):
            whole = copy.deepcopy(beside)
            _merge_into(whole, each, f"{path}/{head}/{i}")
            branches[i] = whole
        for name in beside:
            del schema[name]


def _branches(schema: dict[str, Any], head: str, path: str) -> list[Any]:
    branches: list[Any] = schema.get(head, [])
    expect(branches, list, f"{path}/{head}", "an array of schemas")
    if head in schema and not branches:
        raise SchemaError(f"{path}/{head}", "must have a schema")
    if len(branches) > MAX_BRANCHES:
        raise SchemaError(f"{path}/{head}", f"has more than {MAX_BRANCHES} schemas; use fewer")
    return branches


def _num_names(schema: Mapping[str, Any]) -> int:
    """Return how many names a schema has where those of another one are added."""
    return sum(len(each) for each in schema.values() if isinstance(each, list | dict))


def _num_values(value: Any) -> int:
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_num_values, held))


def _merge_into(schema: dict[str, Any], other: Any, path: str) -> None:
    """Make `schema` ask for what `other` asks for, too."""
    if other is True:
        return
    expect(other, dict, path, "a schema: an object or true")
    for one, two in ((schema, other), (other, schema)):
        if _is_closed(one) and _names(two) - _names(one):
            raise SchemaError(path, "cannot be enforced together with what stands beside it")
    refuse(other, path)
    for name, value in other.items():
        mine = schema.get(name)
        if name in ANNOTATIONS or (name in schema and mine == value):
            continue
        if name not in schema:
            schema[name] = value
        elif name == "type" and (
            types := _both_types(types_of(schema, path), types_of(other, path))
        ):
            schema[name] = types
        elif name == "required" and isinstance(mine, list) and isinstance(value, list):
            schema[name] = _both_names(mine, value, f"{path}/required")
        elif name == "properties" and (both := _both_properties(mine, value)):
            schema[name] = both
        else:
            raise SchemaError(f"{path}/{name}", "cannot be enforced together with another one")


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema says something of properties that it does not name."""
    keys = ("additionalProperties", "unevaluatedProperties")
    return "patternProperties" in schema or any(schema.get(k, True) is not True for k in keys)


def _names(schema: Mapping[str, Any]) -> set[str]:
    properties = schema.get("properties", {})
    return set(properties) if isinstance(properties, dict) else set()


def _both_types(one: list[str] | None, other: list[str] | None) -> list[str]:
    """Return the types that both lists allow; an integer is a number."""
    mine, theirs = one or [], other or []
    both = [each for each in mine if each in theirs]
    for few, many in ((mine, theirs), (theirs, mine)):
        if "integer" in few and "number" in many and "integer" not in both + many:
            both.append("integer")
    return both


def _both_properties(one: Any, other: Any) -> dict[str, Any]:
    """Return the properties of two schemas; nothing where they differ in one."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return {}
    if any(one[key] != other[key] for key in one.keys() & other.keys()):
        return {}
    return {**one, **other}


def _both_names(mine: list[Any], theirs: list[Any], path: str) -> list[Any]:
    """Return the names of two lists, each once."""
    for name in (*mine, *theirs):
        expect(name, str, path, "an array of names")
    return list(dict.fromkeys([*mine, *theirs]))
