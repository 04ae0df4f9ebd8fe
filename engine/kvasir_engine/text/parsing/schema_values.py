"""Values that a model wrote as plain text, as the JSON that a parameter's schema asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from kvasir_engine.grammar.schema_keywords import OF_TYPE
from kvasir_engine.text.parsing.json_scanner import At, JsonScanner

MAX_REFERENCES = 16
"""References that lead to references."""
MAX_LEVELS = 64
"""Choices within choices; what is further within says nothing."""
_NOTHING: Mapping[str, Any] = {}
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
    return schema if isinstance(schema, Mapping) else _NOTHING


def parameter_schema(root: Mapping[str, Any], name: str) -> Any:
    """Return what a function's schema says of a parameter; empty where that is nothing."""
    found = list(_parameter_schemas(root, root, name, set()))
    return found[0] if len(found) == 1 else {"anyOf": found}


def _parameter_schemas(
    root: Mapping[str, Any], schema: Any, name: str, seen: set[int], depth: int = 0
) -> Iterator[Any]:
    schema = resolved(root, schema)
    if id(schema) in seen or depth > MAX_LEVELS:
        return
    seen.add(id(schema))
    named = schema.get("properties")
    if isinstance(named, Mapping) and name in named:
        yield named[name]
    else:
        patterns = schema.get("patternProperties")
        yield from patterns.values() if isinstance(patterns, Mapping) else ()
        for key in ("additionalProperties", "unevaluatedProperties"):
            if isinstance(schema.get(key), Mapping):
                yield schema[key]
    for key in ("allOf", "anyOf", "oneOf"):
        for each in _listed(schema, key):
            yield from _parameter_schemas(root, each, name, seen, depth + 1)


def referenced(root: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """Return the schema that a reference within `root` names; None for any other one."""
    if not reference.startswith("#"):
        return None
    place: Any = root
    for step in filter(None, reference[1:].split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else None


@dataclass(frozen=True, slots=True)
class ValueForm:
    """Values of a parameter, as far as a parser has to know."""

    kinds: frozenset[str] = frozenset()
    """Types; empty = any."""
    choices: tuple[Any, ...] = ()
    """Values that it lists."""

    @classmethod
    def of(cls, root: Mapping[str, Any], schema: Any) -> ValueForm:
        """Return the form of `schema`, a part of `root`."""
        return cls(_kinds(root, schema, set()), tuple(_choices(root, schema, set())))

    @property
    def is_text(self) -> bool:
        """True if it takes strings alone, or says nothing of what it takes."""
        return self.kinds <= {"string"}


def written(value: Any) -> str:
    """Return a value as plain text: a string as it is, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def kind_of(value: Any) -> str:
    """Return the type of a value."""
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, kind in _KINDS.items() if isinstance(value, kind)), "string")


def json_of(text: str, form: ValueForm) -> str:
    """Return `text` as JSON: as it stands where it is a value that `form` allows, else as a
    string."""
    for choice in form.choices:
        if written(choice) == text:
            return json.dumps(choice, ensure_ascii=False)
    bare = text.strip()
    if bare in ("True", "False", "None"):
        bare = {"True": "true", "False": "false", "None": "null"}[bare]
    if _is_json(bare):
        try:
            value = json.loads(bare, strict=False)
        except ValueError:  # a number of thousands of digits
            return json.dumps(text, ensure_ascii=False)
        for kind in form.kinds:
            known = _KINDS.get(kind)
            if known is None or not isinstance(value, known):
                continue
            if isinstance(value, bool) and kind != "boolean":
                continue
            # A string may hold what JSON has as an escape only.
            return bare if bare.isprintable() else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    scanner = JsonScanner()
    # A space ends a number.
    return bool(text) and all(map(scanner.step, text + " ")) and scanner.state is At.DONE


def _kinds(root: Mapping[str, Any], schema: Any, seen: set[int], depth: int = 0) -> frozenset[str]:
    """Return the types that a schema allows, or else those that its keywords are for; empty where
    it says nothing of them, or `seen` has it."""
    if found := _named_kinds(root, schema, seen, depth):
        return found
    schema = resolved(root, schema)
    keys = {*schema}.union(*(resolved(root, each) for each in _listed(schema, "allOf")))
    return frozenset(kind for kind, own in OF_TYPE.items() if own & keys)


def _named_kinds(
    root: Mapping[str, Any], schema: Any, seen: set[int], depth: int
) -> frozenset[str]:
    schema = resolved(root, schema)
    if id(schema) in seen or depth > MAX_LEVELS:
        return frozenset()
    seen.add(id(schema))
    kind = schema.get("type")
    named = kind if isinstance(kind, list) else [kind]
    said = [frozenset(each for each in named if isinstance(each, str))]
    said.append(frozenset(map(kind_of, _own_choices(schema))))
    said += [_named_kinds(root, each, seen, depth + 1) for each in _listed(schema, "allOf")]
    for key in ("anyOf", "oneOf"):
        branches = [_kinds(root, each, seen, depth + 1) for each in _listed(schema, key)]
        said.append(frozenset().union(*branches))
    return reduce(_both, filter(None, said), frozenset())


def _both(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Return the types that both allow, of which an empty one allows any."""
    if not one or not other:
        return one or other
    whole = {"integer"} if "integer" in one | other and "number" in one & other else set()
    wide = [each | {"integer"} if "number" in each else each for each in (one, other)]
    return frozenset(wide[0] & wide[1]) | whole


def _choices(root: Mapping[str, Any], schema: Any, seen: set[int], depth: int = 0) -> Iterator[Any]:
    """Yield the values that a schema, or one of those that it consists of, lists."""
    schema = resolved(root, schema)
    if id(schema) in seen or depth > MAX_LEVELS:
        return
    seen.add(id(schema))
    yield from _own_choices(schema)
    for key in ("allOf", "anyOf", "oneOf"):
        for each in _listed(schema, key):
            yield from _choices(root, each, seen, depth + 1)


def _own_choices(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _listed(schema, "enum")


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []
