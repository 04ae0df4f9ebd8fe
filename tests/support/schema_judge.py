"""Judgement of an output by its JSON schema."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

_DIGITS = 100_000
"""Digits of a number with which it is computed: more than any output has."""


def exact(text: str) -> Any:
    """Return the value of a JSON text with decimal numbers, as they are written."""
    return json.loads(text, parse_float=_number)


def violation(schema: Any, value: Any) -> ValidationError | None:
    """Return what of a schema, formats included, a value of `exact` does not satisfy; None if it is
    valid.

    Numbers are decimal: in binary, 0.07 is no multiple of 0.01.
    """
    made = exact(json.dumps(schema))
    checker = Draft202012Validator(made, format_checker=Draft202012Validator.FORMAT_CHECKER)
    with localcontext(prec=_DIGITS):
        return next(checker.iter_errors(value), None)


def _number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond any
        return float(text)
