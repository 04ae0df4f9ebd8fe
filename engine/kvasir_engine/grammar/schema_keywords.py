"""Keywords of JSON Schema, and what every part of a check needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvasir_engine.grammar.constraint_error import ConstraintError

ANNOTATIONS = frozenset(
    [
        "$schema",
        "$id",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "nullable",
        "discriminator",
        "xml",
        "externalDocs",
    ]
)
STRING = frozenset({"minLength", "maxLength", "pattern", "format"})
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
NUMBER = BOUNDS | {"multipleOf"}
ARRAY = frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"})
OBJECT = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    }
)
OF_TYPE = {"string": STRING, "number": NUMBER, "array": ARRAY, "object": OBJECT}
HEADS = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
DEFINITIONS = ("$defs", "definitions")
REFUSED = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "propertyNames",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
    ]
)
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
FORMATS = frozenset(
    [
        "date",
        "time",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "uri-reference",
        "json-pointer",
        "relative-json-pointer",
        "uri-template",
    ]
)
XGRAMMAR_FORMATS = frozenset(["uri-reference"])
"""Those that llguidance does not know, and that are no patterns (schema_regex.py)."""
KNOWN = frozenset({"type", "additionalItems", *DEFINITIONS, *STRING, *NUMBER, *ARRAY, *OBJECT})


class SchemaError(ConstraintError):
    """Part of a schema that no grammar enforces; the message says where and what instead."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}")
        self.path = path
        self.what = what


def refuse(schema: Mapping[str, Any], path: str) -> None:
    """Raise SchemaError for a keyword that no grammar enforces."""
    # Of a condition its `if` is told.
    for name in sorted(REFUSED & schema.keys(), key=lambda each: (each in ("then", "else"), each)):
        if name == "uniqueItems" and schema[name] is False:
            continue
        raise SchemaError(f"{path}/{name}", "cannot be enforced; leave it out")


def expect(value: Any, kind: type, path: str, what: str) -> None:
    if not isinstance(value, kind):
        raise SchemaError(path, f"must be {what}")


def types_of(schema: Mapping[str, Any], path: str) -> list[str] | None:
    given = schema.get("type")
    if given is None:
        return None
    types = [given] if isinstance(given, str) else given
    if not isinstance(types, list) or not types or not all(each in TYPES for each in types):
        raise SchemaError(f"{path}/type", f"must be one of {', '.join(TYPES)}, or several of them")
    return types


def has_type(value: Any, types: Iterable[str]) -> bool:
    match value:
        case None:
            found = {"null"}
        case bool():
            found = {"boolean"}
        case int():
            found = {"integer", "number"}
        case float():
            found = {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            found = {"string"}
        case list():
            found = {"array"}
        case _:
            found = {"object"}
    return not found.isdisjoint(types)


def objects_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and every object below it but for values: schemas, and maps of them by
    name."""
    if isinstance(schema, list):
        for each in schema:
            yield from objects_of(each)
    elif isinstance(schema, dict):
        yield schema
        for name, each in schema.items():
            if name != "enum":
                yield from objects_of(each)
