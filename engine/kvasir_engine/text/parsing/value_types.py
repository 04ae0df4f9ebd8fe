"""Types of the values that a schema allows, each as a schema of its own: parts of grammars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvasir_engine.grammar.lark import Part, regex
from kvasir_engine.text.parsing.schema_values import kind_of, resolved

Typed = tuple[str, Mapping[str, Any]]
"""A type, and a schema of values of this type alone."""


def typed_values(root: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Typed]:
    """Return what `schema`, an enforceable part of `root`, allows; what says nothing of types is
    one of strings."""
    return [each for part in alternatives(root, schema, set()) for each in _by_type(part)]


def alternatives(
    root: Mapping[str, Any], schema: Mapping[str, Any], seen: set[int]
) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of which a value satisfies one, without references and choices."""
    schema = resolved(root, schema)
    if id(schema) in seen:
        return
    seen.add(id(schema))
    if "anyOf" not in schema:
        yield schema
    for each in schema.get("anyOf", ()):
        yield from alternatives(root, each, seen)


def unnamed(
    schema: Mapping[str, Any], any_name: Part
) -> tuple[Part, Mapping[str, Any], int | None] | None:
    """Return what arguments that a schema does not name are called, the schema of their values, and
    how many there may be at most; None where there may be none."""
    others, name = schema.get("additionalProperties", {}), any_name
    for pattern, each in schema.get("patternProperties", {}).items():
        others, name = each, f"({any_name} & {regex(pattern)})"
    most = schema.get("maxProperties")
    if others is False or most == 0:
        return None
    return name, {} if others is True else others, most


def _by_type(schema: Mapping[str, Any]) -> Iterator[Typed]:
    if "enum" in schema:
        for value in schema["enum"]:
            yield kind_of(value), {"enum": [value]}
        return
    given = schema.get("type", "string")
    for kind in [given] if isinstance(given, str) else given:
        yield kind, {**schema, "type": kind}
