"""Label selectors as the API takes them in a query: `a=b,c!=d,e in (f,g),h notin (i),j,!k`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

MAX_SELECTOR_CHARS = 4096

Matches = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9._:/-]*"
_EQUAL = re.compile(rf"({_KEY})\s*(==?|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_COMMA_OUTSIDE = re.compile(r",(?![^(]*\))")


class SelectorError(ValueError):
    """No label selector; the message shows the part that is none."""


def parse_selector(text: str) -> Matches:
    """Return a predicate on labels; an empty selector takes all. Raises SelectorError."""
    if len(text) > MAX_SELECTOR_CHARS:
        raise SelectorError(f"a label selector of more than {MAX_SELECTOR_CHARS} characters")
    parts = [part.strip() for part in _COMMA_OUTSIDE.split(text)] if text.strip() else []
    requirements = [_requirement(part) for part in parts]
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirement(part: str) -> Matches:
    if match := _EQUAL.fullmatch(part):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _SET.fullmatch(part):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "notin":
            return lambda labels: labels.get(key) not in values
        return lambda labels: key in labels and labels[key] in values
    if match := _EXISTS.fullmatch(part):
        absent, key = bool(match[1]), match[2]
        return lambda labels: (key in labels) is not absent
    raise SelectorError(f"{part[:100]!r} is no part of a label selector")
