"""Bounds of numbers, and shapes of strings."""

from __future__ import annotations

import math
import re
from typing import Any

from kvasir_engine.grammar.schema_keywords import (
    FORMATS,
    NUMBER,
    STRING,
    XGRAMMAR_FORMATS,
    SchemaError,
    expect,
)
from kvasir_engine.grammar.schema_regex import portable

_BEYOND_REGULAR = re.compile(r"\(\?(?!:)|\\[1-9bBpPkAzZG]")
"""Look-around, flags, names, back references, boundaries and classes by Unicode property."""
"""Look-around, flags, names, back references, boundaries and classes by Unicode property."""


def numbers(schema: dict[str, Any], kinds: set[str], path: str) -> None:
    for name in NUMBER & schema.keys():
        value = schema[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
            raise SchemaError(f"{path}/{name}", "must be a number")
    whole = "integer" in kinds
    if whole and "number" not in kinds:
        _whole_bounds(schema, path)
    if "multipleOf" in schema:
        ranged = NUMBER & schema.keys() - {"multipleOf"}
        step = schema["multipleOf"]
        if ranged or "number" in kinds or step != int(step) or step < 1:
            raise SchemaError(
                f"{path}/multipleOf", "can be enforced for integers only, without bounds"
            )


def _whole_bounds(schema: dict[str, Any], path: str) -> None:
    """Bounds of integers are integers of 64 bits."""
    for name, toward in (
        ("minimum", math.ceil),
        ("maximum", math.floor),
        ("exclusiveMinimum", math.floor),
        ("exclusiveMaximum", math.ceil),
    ):
        if name in schema:
            schema[name] = bound = toward(schema[name])
            if abs(bound) >= 2**63:
                raise SchemaError(f"{path}/{name}", "must fit into 64 bits")


def strings(schema: dict[str, Any], path: str) -> None:
    if schema.get("format") not in FORMATS:
        schema.pop("format", None)  # It is an annotation.
    shaped = [name for name in ("pattern", "format") if name in schema]
    if not shaped:
        return
    if others := (STRING & schema.keys()) - {shaped[0]}:
        beside = ", ".join(sorted(others))
        raise SchemaError(f"{path}/{shaped[0]}", f"cannot be enforced together with {beside}")
    if "pattern" in schema:
        regular(schema["pattern"], f"{path}/pattern")


def strings_in_calls(schema: dict[str, Any], path: str) -> None:
    """Bring strings into a form that llguidance enforces, also as plain text."""
    if schema.get("format") in XGRAMMAR_FORMATS:
        raise SchemaError(f"{path}/format", "cannot be enforced in calls; leave it out")
    for name in ("minLength", "maxLength"):
        _count(schema, name, path)
    if "pattern" in schema:
        schema["pattern"] = _portable(schema["pattern"], f"{path}/pattern")


def objects_in_calls(schema: dict[str, Any], path: str) -> None:
    """Bring objects into a form that llguidance enforces, also as tags."""
    named = schema.get("patternProperties", {})
    for key in list(named):
        named[_portable(key, f"{path}/patternProperties/{key}")] = named.pop(key)
    optional = schema.get("properties", {}).keys() - {*schema.get("required", ())}
    for name in ("minProperties", "maxProperties"):
        _count(schema, name, path)
        if optional and name in schema:
            where = f"{path}/{name}"
            raise SchemaError(where, "can be enforced in calls only where no property is optional")


def _portable(pattern: str, path: str) -> str:
    try:
        return portable(pattern)
    except ValueError as error:
        raise SchemaError(path, f"is no regular expression: {error}") from None


def _count(schema: dict[str, Any], name: str, path: str) -> None:
    found = schema.get(name, 0)
    if isinstance(found, bool) or not isinstance(found, int | float) or found % 1:
        raise SchemaError(f"{path}/{name}", "must be an integer")
    if not 0 <= found < 2**31:
        raise SchemaError(f"{path}/{name}", "must be 0 to 2147483647")
    if name in schema:
        schema[name] = int(found)


def regular(pattern: Any, path: str) -> None:
    expect(pattern, str, path, "a regular expression")
    if found := _BEYOND_REGULAR.search(pattern):
        raise SchemaError(path, f"has {found.group()!r}, which cannot be enforced")
