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
from kvasir_engine.grammar.schema_regex import FORMATS_AS_PATTERNS, portable

_BEYOND_REGULAR = re.compile(r"\(\?(?!:)|\\[1-9bBpPkAzZG]")
"""Look-around, flags, names, back references, boundaries and classes by Unicode property."""
MAX_STEP = 1024
"""Largest multipleOf: llguidance's work grows with it, and xgrammar leaves larger ones out."""


def numbers(schema: dict[str, Any], kinds: set[str], path: str) -> None:
    for name in NUMBER & schema.keys():
        value = schema[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise SchemaError(f"{path}/{name}", "must be a number")
    whole = "integer" in kinds
    if whole and "number" not in kinds:
        _whole_bounds(schema, path)
    _not_empty(schema, path, step=int(whole and "number" not in kinds))
    if "multipleOf" in schema:
        ranged = NUMBER & schema.keys() - {"multipleOf"}
        step = schema["multipleOf"]
        if ranged or "number" in kinds or step != int(step) or step < 1:
            raise SchemaError(
                f"{path}/multipleOf", "can be enforced for integers only, without bounds"
            )
        if step > MAX_STEP:
            raise SchemaError(f"{path}/multipleOf", f"can be enforced up to {MAX_STEP}")


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


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


def _not_empty(schema: dict[str, Any], path: str, step: int) -> None:
    """Refuse bounds that no number is within; integers are a step apart."""
    low = [schema[name] for name in ("minimum",) if name in schema]
    high = [schema[name] for name in ("maximum",) if name in schema]
    low += [schema[name] + step for name in ("exclusiveMinimum",) if name in schema]
    high += [schema[name] - step for name in ("exclusiveMaximum",) if name in schema]
    if not low or not high:
        return
    open_end = not step and (
        schema.get("exclusiveMinimum") == max(low) or schema.get("exclusiveMaximum") == min(high)
    )
    if max(low) > min(high) or (open_end and max(low) == min(high)):
        name = next(each for each in ("minimum", "exclusiveMinimum") if each in schema)
        raise SchemaError(f"{path}/{name}", "leaves no number below the upper bound")


def strings(schema: dict[str, Any], path: str) -> None:
    counts(schema, "minLength", "maxLength", path)
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
    if schema.get("format") in FORMATS_AS_PATTERNS:
        schema["pattern"] = FORMATS_AS_PATTERNS[schema.pop("format")]


def strings_in_calls(schema: dict[str, Any], path: str) -> None:
    """Bring strings into a form that llguidance enforces, also as plain text."""
    if schema.get("format") in XGRAMMAR_FORMATS:
        raise SchemaError(f"{path}/format", "cannot be enforced in calls; leave it out")
    if "pattern" in schema:
        schema["pattern"] = _portable(schema["pattern"], f"{path}/pattern")


def objects_in_calls(schema: dict[str, Any], path: str) -> None:
    """Bring objects into a form that llguidance enforces, also as tags."""
    named = schema.get("patternProperties", {})
    for key in list(named):
        named[_portable(key, f"{path}/patternProperties/{key}")] = named.pop(key)
    optional = schema.get("properties", {}).keys() - {*schema.get("required", ())}
    for name in ("minProperties", "maxProperties"):
        if optional and name in schema:
            where = f"{path}/{name}"
            raise SchemaError(where, "can be enforced in calls only where no property is optional")


def _portable(pattern: str, path: str) -> str:
    try:
        return portable(pattern)
    except ValueError as error:
        raise SchemaError(path, f"is no regular expression: {error}") from None


def counts(schema: dict[str, Any], least: str, most: str, path: str) -> None:
    """Have two keywords be integers, of which the second is no less."""
    for name in (least, most):
        _count(schema, name, path)
    if schema.get(least, 0) > schema.get(most, schema.get(least, 0)):
        raise SchemaError(f"{path}/{least}", f"is more than {most}")


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
