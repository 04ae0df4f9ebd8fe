"""Values that a model wrote as plain text, as the JSON that a parameter's schema asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvasir_engine.text.parsing.json_scanner import At, JsonScanner

MAX_REFERENCES = 16
"""References that lead to references."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def resolved(root: Mapping[str, Any], schema: Any) -> Mapping[str, Any]:
    """Return the schema that `schema`, a part of `root`, stands for: itself, or what its $ref leads
    to; empty where that is nothing."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            break
        schema = referenced(root, reference)
    return schema if isinstance(schema, Mapping) else {}


def referenced(root: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """Return the schema that a reference within `root` names; None for any other one."""
    if not reference.startswith("#"):
        return None
    place: Any = root
    for step in filter(None, reference[1:].split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else None


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a parameter takes strings alone, or says nothing of what it takes."""
    return set(kinds_of(schema)) <= {"string"}


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
        for kind in kinds_of(schema):
            known = _KINDS.get(kind)
            if known is None or not isinstance(value, known):
                continue
            if isinstance(value, bool) and kind != "boolean":
                continue
            # A string may hold what JSON has as an escape only.
            return written if written.isprintable() else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    scanner = JsonScanner()
    # A space ends a number.
    return bool(text) and all(map(scanner.step, text + " ")) and scanner.state is At.DONE


def kinds_of(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the types that a schema names."""
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
