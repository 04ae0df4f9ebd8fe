"""Bounds of numbers, and shapes of strings."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from kvasir_engine.grammar.schema_keywords import (
    BOUNDS,
    FORMATS,
    NUMBER,
    STRING,
    XGRAMMAR_FORMATS,
    SchemaError,
    expect,
    objects_of,
)
from kvasir_engine.grammar.schema_regex import FORMATS_AS_PATTERNS, portable

_BEYOND_REGULAR = re.compile(r"\(\?(?!:)|\\[1-9bBpPkAzZG]")
"""Look-around, flags, names, back references, boundaries and classes by Unicode property."""
MAX_STEP = 1024
"""Largest multipleOf, in units of its last decimal place: llguidance's work grows with it."""


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
        _multiples(schema, f"{path}/multipleOf")


def _multiples(schema: dict[str, Any], path: str) -> None:
    step = schema["multipleOf"]
    if step <= 0:
        raise SchemaError(path, "must be more than 0")
    units = _units(step)
    if units > MAX_STEP:
        sentence = f"can be enforced up to {MAX_STEP} units of its last decimal place"
        raise SchemaError(path, sentence)
    if units != _units_as_read(step):
        raise SchemaError(path, f"cannot be enforced exactly: in binary, {step} has more digits")
    if not _has_multiple(schema, Fraction(str(step))):
        raise SchemaError(path, "leaves no number between the bounds")


def _units(step: float) -> int:
    """Return how often its last decimal place is in a number."""
    exact = Fraction(str(step))
    places = 0
    while exact * 10**places % 1:
        places += 1
    return int(exact * 10**places)


def _units_as_read(step: float) -> int:
    """Return the same as llguidance computes it: in binary, where some numbers have more digits."""
    while step != int(step):
        step *= 10
    return int(step)


def _has_multiple(schema: dict[str, Any], step: Fraction) -> bool:
    """Return whether a multiple of `step` is within the bounds."""
    bounds = {name: Fraction(str(schema[name])) / step for name in BOUNDS & schema.keys()}
    first = [math.ceil(bounds[name]) for name in ("minimum",) if name in bounds]
    first += [math.floor(bounds[name]) + 1 for name in ("exclusiveMinimum",) if name in bounds]
    last = [math.floor(bounds[name]) for name in ("maximum",) if name in bounds]
    last += [math.ceil(bounds[name]) - 1 for name in ("exclusiveMaximum",) if name in bounds]
    return not first or not last or max(first) <= min(last)


def xgrammar_multiples(schema: Any) -> bool:
    """Return whether xgrammar enforces every multipleOf of a schema: it does for integers without
    bounds, and leaves others out."""
    return all(map(_xgrammar_multiple, objects_of(schema)))


def _xgrammar_multiple(schema: dict[str, Any]) -> bool:
    step = schema.get("multipleOf")
    if not isinstance(step, int | float):  # there is none, or it is a property's name
        return True
    ranged = schema.get("type") != "integer" or bool(BOUNDS & schema.keys())
    return not ranged and step == int(step)


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
