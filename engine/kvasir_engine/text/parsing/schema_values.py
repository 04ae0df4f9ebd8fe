"""Values that a model wrote as plain text, as the JSON that a parameter's schema asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvasir_engine.text.parsing.json_scanner import At, JsonScanner

_KINDS: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a parameter takes strings alone, or says nothing of what it takes."""
    return set(_kinds(schema)) <= {"string"}


def json_of(text: str, schema: Mapping[str, Any]) -> str:
    """Return `text` as JSON: as it stands where it is a value that `schema` allows, else as a
    string."""
    written = text.strip()
    if written in ("True", "False", "None"):
        written = {"True": "true", "False": "false", "None": "null"}[written]
    if _is_json(written):
        try:
            value = json.loads(written, strict=False)
        except ValueError:  # a number of thousands of digits
            return json.dumps(text, ensure_ascii=False)
        for kind in _kinds(schema):
            known = _KINDS.get(kind)
            if known is None or not isinstance(value, known):
                continue
            if isinstance(value, bool) and kind != "boolean":
                continue
            return written
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    scanner = JsonScanner()
    # A space ends a number.
    return bool(text) and all(map(scanner.step, text + " ")) and scanner.state is At.DONE


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        yield from (each for each in kind if isinstance(each, str))
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for each in choices if isinstance(choices, list) else ():
            # One level is what tools have; a schema within it may lead anywhere.
            if isinstance(each, Mapping) and isinstance(each.get("type"), str):
                yield each["type"]
