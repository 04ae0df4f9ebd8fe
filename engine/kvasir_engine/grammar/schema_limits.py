"""Bounds of numbers, and shapes of strings."""

from __future__ import annotations

import math
import re
from typing import Any

from kvasir_engine.grammar.schema_keywords import FORMATS, NUMBER, STRING, SchemaError, expect

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


def regular(pattern: Any, path: str) -> None:
    expect(pattern, str, path, "a regular expression")
    if found := _BEYOND_REGULAR.search(pattern):
        raise SchemaError(path, f"has {found.group()!r}, which cannot be enforced")
