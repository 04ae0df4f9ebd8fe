"""Bring a JSON schema into a form that a grammar enforces whole, or say which part it cannot.

The grammar library drops what it cannot express, or takes it for something wider, without a word;
an output of its grammar need not be valid then. What is returned here is enforced exactly, or more
narrowly than the schema asks: objects are closed unless `additionalProperties` opens them, keys
come in the order of `properties`, and a pattern must match the whole string.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from kvasir_engine.grammar.schema_disjoint import all_disjoint, num_compared
from kvasir_engine.grammar.schema_keywords import (
    DEFINITIONS,
    HEADS,
    KNOWN,
    OF_TYPE,
    SchemaError,
    expect,
    has_type,
    refuse,
    types_of,
)
from kvasir_engine.grammar.schema_limits import (
    counts,
    numbers,
    objects_in_calls,
    regular,
    strings,
    strings_in_calls,
)
from kvasir_engine.grammar.schema_merge import MergeBudget, merge_heads

MAX_SCHEMAS = 2000
"""Subschemas of one schema."""
MAX_DEPTH = 64
MAX_VALUES = 5000
"""Values of an enum."""
MAX_COMPARED = 128
"""Branches of a oneOf, those that are values aside."""


def enforceable(schema: Any, *, in_calls: bool = False) -> Any:
    """Return what to compile for a schema, in calls with llguidance alone. Raises SchemaError for
    the first part that cannot be enforced."""
    try:
        return _Walk(copy.deepcopy(schema), in_calls=in_calls).result()
    except RecursionError:
        raise SchemaError("#", f"is more than {MAX_DEPTH} levels deep") from None


class _Walk:
    """One schema, changed in place where its form must be another."""

    def __init__(self, root: Any, *, in_calls: bool) -> None:
        self._root = root
        self._in_calls = in_calls
        self._seen: set[int] = set()
        self._narrowed: set[int] = set()
        """Schemas that were of no type, and also take values of the types that they say nothing
        about."""
        self._refs: list[tuple[str, dict[str, Any]]] = []
        """Schemas that are references, and their paths."""
        self._budget = MergeBudget()

    def result(self) -> Any:
        root = self._schema(self._root, "#", 0)
        targets = {}
        for path, schema in self._refs:
            ref = schema["$ref"]
            targets[id(schema)] = target = _target(root, ref, path)
            if id(target) not in self._seen:
                raise SchemaError(path, f"points to {ref}, which is no place of a schema")
        self._refuse_loops(targets)
        return root

    def _refuse_loops(self, targets: dict[int, Any]) -> None:
        """Raise SchemaError for a reference that leads to references alone."""
        ends: set[int] = set()
        for path, schema in self._refs:
            way: dict[int, None] = {}
            at: Any = schema
            while id(at) in targets and id(at) not in ends:
                if id(at) in way:
                    raise SchemaError(path, "refers to itself")
                way[id(at)] = None
                at = targets[id(at)]
            ends |= way.keys()

    def _schema(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            if not schema:
                raise SchemaError(path, "is false, which no value satisfies; leave it out")
            return {}
        expect(schema, dict, path, "a schema: an object or true")
        if depth > MAX_DEPTH:
            raise SchemaError(path, f"is more than {MAX_DEPTH} levels deep")
        self._seen.add(id(schema))
        if len(self._seen) > MAX_SCHEMAS:
            raise SchemaError(path, f"is one of more than {MAX_SCHEMAS} subschemas; use fewer")
        refuse(schema, path)
        for name in schema.keys() - KNOWN - {*HEADS}:
            del schema[name]  # Annotations, and what nobody knows, say nothing.
        self._named(schema, DEFINITIONS, path, depth)
        merge_heads(schema, path, self._budget)
        heads = [each for each in HEADS if each in schema]
        if heads:
            self._head(schema, heads, path, depth)
        else:
            self._typed(schema, path, depth)
        return schema

    def _named(
        self, schema: dict[str, Any], keywords: Iterable[str], path: str, depth: int
    ) -> None:
        """Subschemas that have names, below each of some keywords."""
        for name in keywords:
            found = schema.get(name)
            if found is None:
                continue
            expect(found, dict, f"{path}/{name}", "an object of schemas")
            for key, each in found.items():
                found[key] = self._schema(each, f"{path}/{name}/{key}", depth + 1)

    def _head(self, schema: dict[str, Any], heads: list[str], path: str, depth: int) -> None:
        """A schema that is one of: a reference, a choice, a value."""
        [head] = heads[:1]
        own = schema.keys() - {head, *DEFINITIONS}
        if head in ("enum", "const"):
            self._values(schema, head, own, path)
            return
        if own:
            beside = ", ".join(sorted(own))
            raise SchemaError(f"{path}/{head}", f"cannot be enforced together with {beside}")
        if head == "$ref":
            expect(schema[head], str, f"{path}/$ref", "a string")
            self._refs.append((f"{path}/$ref", schema))
            return
        branches = schema.pop(head)
        for i, each in enumerate(branches):
            branches[i] = self._schema(each, f"{path}/{head}/{i}", depth + 1)
        if head == "oneOf":
            self._disjoint(branches, f"{path}/oneOf")
        schema["anyOf"] = branches

    def _values(self, schema: dict[str, Any], head: str, own: set[str], path: str) -> None:
        if others := own - {"type"}:
            beside = ", ".join(sorted(others))
            raise SchemaError(f"{path}/{head}", f"cannot be enforced together with {beside}")
        values = schema.pop(head) if head == "enum" else [schema.pop(head)]
        expect(values, list, f"{path}/{head}", "an array of values")
        types = types_of(schema, path)
        fitting = [each for each in values if types is None or has_type(each, types)]
        if not 0 < len(fitting) <= MAX_VALUES:
            raise SchemaError(f"{path}/{head}", f"must have 1 to {MAX_VALUES} values of its type")
        schema.pop("type", None)
        schema["enum"] = fitting

    def _typed(self, schema: dict[str, Any], path: str, depth: int) -> None:
        types = types_of(schema, path)
        named = [kind for kind, keys in OF_TYPE.items() if keys & schema.keys()]
        if types is None and named:
            if len(named) > 1:
                raise SchemaError(path, f"is of no type and has keywords of {', '.join(named)}")
            schema["type"] = named[0]
            types = named
            self._narrowed.add(id(schema))
        kinds = set(types or ())
        for kind, keys in OF_TYPE.items():
            if kind not in kinds and not (kind == "number" and "integer" in kinds):
                for name in keys & schema.keys():
                    del schema[name]  # It says nothing about the types that there are.
        if kinds & {"number", "integer"}:
            numbers(schema, kinds, path)
        if "string" in kinds:
            strings(schema, path)
            if self._in_calls:
                strings_in_calls(schema, path)
        if "array" in kinds:
            self._arrays(schema, path, depth)
        if "object" in kinds:
            self._objects(schema, path, depth)

    def _arrays(self, schema: dict[str, Any], path: str, depth: int) -> None:
        counts(schema, "minItems", "maxItems", path)
        items = schema.get("items")
        if isinstance(items, list):  # As it was up to draft 2019-09.
            schema["prefixItems"] = schema.pop("items")
            if "additionalItems" in schema:
                schema["items"] = schema.pop("additionalItems")
        prefix = schema.get("prefixItems")
        if prefix is not None:
            expect(prefix, list, f"{path}/prefixItems", "an array of schemas")
            for i, each in enumerate(prefix):
                prefix[i] = self._schema(each, f"{path}/prefixItems/{i}", depth + 1)
        for name in ("items", "unevaluatedItems"):
            if name in schema and schema[name] is not False:
                schema[name] = self._schema(schema[name], f"{path}/{name}", depth + 1)
        if "unevaluatedItems" in schema:
            schema.setdefault("items", schema.pop("unevaluatedItems"))
        if schema.get("items") is False and schema.get("minItems", 0) > len(prefix or ()):
            raise SchemaError(f"{path}/minItems", "is more than the items that there may be")

    def _objects(self, schema: dict[str, Any], path: str, depth: int) -> None:
        counts(schema, "minProperties", "maxProperties", path)
        self._named(schema, ("properties", "patternProperties"), path, depth)
        for name in ("additionalProperties", "unevaluatedProperties"):
            if name in schema and not isinstance(schema[name], bool):
                schema[name] = self._schema(schema[name], f"{path}/{name}", depth + 1)
        patterns = schema.get("patternProperties")
        if patterns and (
            len(patterns) > 1 or schema.get("properties") or schema.get("additionalProperties")
        ):
            raise SchemaError(
                f"{path}/patternProperties", "can be enforced alone and with one pattern only"
            )
        for key in patterns or ():
            regular(key, f"{path}/patternProperties/{key}")
        if "unevaluatedProperties" in schema:  # Nothing beside it evaluates further ones.
            schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
        self._required(schema, path)
        if schema.get("properties") is not None or patterns:
            schema.setdefault("additionalProperties", False)
        self._least(schema, path)
        if self._in_calls:
            objects_in_calls(schema, path)

    def _least(self, schema: dict[str, Any], path: str) -> None:
        """A grammar may write a key that it does not know twice; it counts once."""
        least, required = schema.get("minProperties", 0), len(set(schema.get("required", ())))
        if schema.get("maxProperties", required) < required:
            raise SchemaError(f"{path}/maxProperties", "is less than the properties in required")
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        if closed and least > len(schema.get("properties", {})):
            raise SchemaError(f"{path}/minProperties", "is more than the properties that there are")
        if least <= required:
            schema.pop("minProperties", None)
        elif schema.get("additionalProperties", False) is not False or not schema.get("properties"):
            raise SchemaError(
                f"{path}/minProperties", "can be enforced with additionalProperties false only"
            )

    def _required(self, schema: dict[str, Any], path: str) -> None:
        required = schema.get("required", [])
        expect(required, list, f"{path}/required", "an array of names")
        properties = schema.setdefault("properties", {}) if required else {}
        for name in required:
            expect(name, str, f"{path}/required", "an array of names")
            if name in properties:
                continue
            others = schema.get("additionalProperties", True)
            if others is False or "patternProperties" in schema:
                raise SchemaError(f"{path}/required", f"names {name!r}, which properties lack")
            properties[name] = {} if others is True else copy.deepcopy(others)
        if len(properties) > MAX_SCHEMAS:
            raise SchemaError(f"{path}/required", f"makes more than {MAX_SCHEMAS} properties")

    def _disjoint(self, branches: list[dict[str, Any]], path: str) -> None:
        if len(branches) < 2:
            return
        resolved = [self._resolved(each, path) for each in branches]
        if num_compared(resolved) > MAX_COMPARED:
            raise SchemaError(path, f"has more than {MAX_COMPARED} branches to compare; use anyOf")
        if not self._narrowed.isdisjoint(map(id, resolved)) or not all_disjoint(resolved):
            raise SchemaError(
                path,
                "has branches that one value may satisfy together; use anyOf, or give each "
                "a required property with another const",
            )

    def _resolved(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        for _ in range(MAX_DEPTH):
            if "$ref" not in schema:
                return schema
            schema = _target(self._root, schema["$ref"], path)
        raise SchemaError(path, "refers to itself")


def _target(root: Any, ref: str, path: str) -> Any:
    """Return what a reference within the schema points to."""
    if not ref.startswith("#") or not (ref == "#" or ref.startswith("#/")):
        raise SchemaError(path, f"is {ref!r}; it must be # or begin with #/")
    if "~" in ref or "%" in ref:
        raise SchemaError(path, f"is {ref!r}; a name in it must need no escapes")
    found = root
    for part in _parts(ref):
        try:
            found = found[int(part)] if isinstance(found, list) else found[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise SchemaError(path, f"points to {ref}, which is not there") from None
    return found


def _parts(ref: str) -> Iterator[str]:
    yield from ref.removeprefix("#").split("/")[1:]
