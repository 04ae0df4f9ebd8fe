"""Judgement of an output by its JSON schema."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from jsonschema import Draft202012Validator, ValidationError


def violation(schema: Any, text: str) -> ValidationError | None:
    """Return what of a schema, formats included, the JSON text does not satisfy; None if it is
    valid. Raises ValueError for no JSON.

    Numbers are decimal, as they are written: in binary, 0.07 is no multiple of 0.01.
    """
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    checker = Draft202012Validator(exact, format_checker=Draft202012Validator.FORMAT_CHECKER)
    with localcontext(prec=len(text) + 100):
        return next(checker.iter_errors(json.loads(text, parse_float=_number)), None)


def _number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond any
        return float(text)
