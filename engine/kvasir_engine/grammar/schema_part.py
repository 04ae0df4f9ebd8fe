"""A part of a JSON schema as a schema of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DATA = ("enum", "const")
"""Keywords below which there are no schemas."""


def standalone(root: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return `part` of `root` with what it refers to."""
    if not _refers(part):
        return dict(part)
    return {**_moved(part), "$defs": {"root": _moved(root)}}


def _refers(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        own = isinstance(schema.get("$ref"), str)
        return own or any(_refers(each) for name, each in schema.items() if name not in _DATA)
    return isinstance(schema, list) and any(map(_refers, schema))


def _moved(schema: Any) -> Any:
    """Return a schema whose references lead to where the root is now."""
    if isinstance(schema, Mapping):
        made = {name: each if name in _DATA else _moved(each) for name, each in schema.items()}
        if isinstance(made.get("$ref"), str):
            made["$ref"] = made["$ref"].replace("#", "#/$defs/root", 1)
        return made
    return list(map(_moved, schema)) if isinstance(schema, list) else schema
