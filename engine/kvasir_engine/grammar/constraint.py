"""Form that a request's output must have: what it says, as it is compiled and cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.json_schema import enforceable
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.grammar.schema_limits import regular
from kvasir_engine.grammar.schema_regex import lengths_as_patterns

MAX_BYTES = 128 << 10
"""UTF-8 bytes of a constraint."""
MAX_CHOICES = 1024
_TAG_SCHEMAS = ("json_schema", "schema")
"""Fields of structural tags that are JSON schemas: of today's form, and of the one before."""
MAX_WHITESPACE = 16
"""Between two parts of a JSON value: a model may go on with it for ever."""


class ConstraintKind(StrEnum):
    """Language that a constraint is written in."""

    JSON = "json"
    """JSON Schema."""
    REGEX = "regex"
    GRAMMAR = "grammar"
    """EBNF, as GBNF of llama.cpp writes it, with a rule `root`."""
    STRUCTURAL_TAG = "structural_tag"
    LARK = "lark"
    """llguidance's dialect of Lark, with a rule `start`."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint; equal ones have the same grammar."""

    kind: ConstraintKind
    text: str

    @property
    def key(self) -> str:
        """The constraint as one string."""
        return f"{self.kind}:{self.text}"

    @classmethod
    def of_key(cls, key: str) -> Self:
        """Return the constraint that has this key."""
        kind, _, text = key.partition(":")
        return cls(ConstraintKind(kind), text)


@lru_cache(maxsize=32)
def parse_constraint(text: str) -> Constraint:
    """Return the constraint that `SamplingParams.structured_outputs` has as JSON: an object with
    exactly one of json, json_object, regex, choice, grammar, structural_tag and lark.

    Raises ConstraintError.
    """
    if len(text.encode()) > MAX_BYTES:
        raise ConstraintError(f"it has more than {MAX_BYTES} bytes")
    try:
        found = _read(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or len(found) != 1:
        raise ConstraintError(f"it must be an object with exactly one of {', '.join(_READERS)}")
    [(name, value)] = found.items()
    reader = _READERS.get(name)
    if reader is None:
        raise ConstraintError(f"{name!r} is not one of {', '.join(_READERS)}")
    return reader(value)


def _json(value: Any) -> Constraint:
    if isinstance(value, str):
        try:
            value = _read(value)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"json is not JSON: {error}") from None
    if not isinstance(value, dict | bool):
        raise ConstraintError("json must be a JSON schema, an object")
    made = enforceable(value)
    try:
        written = json.dumps(made, ensure_ascii=False, allow_nan=False)
        written.encode()
    except ValueError:  # A number too large for a float, or half of a character.
        raise ConstraintError("json has a value that JSON cannot have") from None
    return Constraint(ConstraintKind.JSON, written)


def _read(text: str) -> Any:
    """Return what JSON says. Raises ValueError, also for NaN and Infinity, and RecursionError."""

    def no_number(name: str) -> None:
        raise ValueError(f"{name} is no number")

    return json.loads(text, parse_constant=no_number)


def _json_object(value: Any) -> Constraint:
    if value is not True:
        raise ConstraintError("json_object must be true, or left out")
    return _json({"type": "object"})


def _text_of(kind: ConstraintKind) -> Callable[[Any], Constraint]:
    def read(value: Any) -> Constraint:
        if not isinstance(value, str) or not value:
            raise ConstraintError(f"{kind} must be a string that is not empty")
        return Constraint(kind, value)

    return read


def _regex(value: Any) -> Constraint:
    constraint = _text_of(ConstraintKind.REGEX)(value)
    regular(value, "regex")
    return constraint


def _structural_tag(value: Any) -> Constraint:
    if not isinstance(value, dict | str):
        raise ConstraintError("structural_tag must be an object")
    try:
        tag = _enforceable_tag(_read(value) if isinstance(value, str) else value, "structural_tag")
        text = json.dumps(tag, ensure_ascii=False, allow_nan=False)
    except SchemaError:
        raise
    except RecursionError:
        raise ConstraintError("structural_tag has too many levels") from None
    except ValueError as error:
        raise ConstraintError(f"structural_tag is not JSON: {error}") from None
    return Constraint(ConstraintKind.STRUCTURAL_TAG, text)


def _enforceable_tag(tag: Any, path: str) -> Any:
    """Return a part of a structural tag whose schemas are enforceable."""
    if isinstance(tag, list):
        return [_enforceable_tag(each, f"{path}/{at}") for at, each in enumerate(tag)]
    if not isinstance(tag, dict):
        return tag
    made = {}
    for name, each in tag.items():
        if name in _TAG_SCHEMAS and isinstance(each, dict | bool):
            made[name] = _enforceable_part(each, f"{path}/{name}")
        else:
            made[name] = _enforceable_tag(each, f"{path}/{name}")
    if tag.get("type") == "regex":
        regular(tag.get("pattern"), f"{path}/pattern")
    return made


def _enforceable_part(schema: Any, path: str) -> Any:
    try:
        return lengths_as_patterns(enforceable(schema))
    except SchemaError as error:
        raise SchemaError(error.path.replace("#", path, 1), error.what) from None


def schemas_of_tag(tag: Any) -> Iterator[Any]:
    """Yield the JSON schemas of a structural tag."""
    held = tag if isinstance(tag, list) else tag.values() if isinstance(tag, dict) else ()
    if isinstance(tag, dict):
        yield from (tag[name] for name in _TAG_SCHEMAS if isinstance(tag.get(name), dict))
    for each in held:
        yield from schemas_of_tag(each)


def _choice(value: Any) -> Constraint:
    texts = value if isinstance(value, list) else []
    if not texts or len(texts) > MAX_CHOICES or not all(isinstance(t, str) and t for t in texts):
        raise ConstraintError(f"choice must be 1 to {MAX_CHOICES} strings that are not empty")
    literals = " | ".join(map(_literal, texts))
    return Constraint(ConstraintKind.GRAMMAR, f"root ::= {literals}")


def _literal(text: str) -> str:
    r"""Return `text` as a string of a grammar, control characters as \u escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


_READERS: dict[str, Callable[[Any], Constraint]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _text_of(ConstraintKind.GRAMMAR),
    "structural_tag": _structural_tag,
    "lark": _text_of(ConstraintKind.LARK),
}
