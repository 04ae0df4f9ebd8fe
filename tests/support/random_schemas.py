"""Random JSON schemas of every keyword that people use, and some that cannot be enforced."""

from __future__ import annotations

import json
import random
from typing import Any

NAMES = ["a", "b", "name", "x y", "é", 'q"', "id", "k"]
VALUES: list[Any] = ["a", "b", 1, 2.5, None, True, {"a": 1}, [1, "x"], 'é"\n']
PATTERNS = [
    *("^[a-z]{2,5}$", "[0-9]+", "^(foo|bar)$", r"^\d{3}-\w+$", "^a.b$", "x?y", "^[^0-9]$"),
    *(r"^[A-Z]{2}\d{4,6}$", r"^#[0-9a-fA-F]{6}$", r"^v\d+\.\d+(\.\d+)?$", r"^\S+@\S+$", "^/", "^$"),
    *(r"^(?=a)b", r"^(a)\1$"),
]
FORMATS = [
    *(
        "date",
        "date-time",
        "email",
        "uuid",
        "ipv4",
        "ipv6",
        "phone",
        "time",
        "duration",
        "hostname",
    ),
    *("uri", "uri-reference", "json-pointer"),
]
REFUSED: list[dict[str, Any]] = [
    {"not": {"type": "string"}},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "integer"}, "minContains": 1},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
    {"type": "object", "properties": {"a": {}}, "dependentSchemas": {"a": {"required": ["b"]}}},
    {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"type": "string"}},
        "if": {"properties": {"a": {"const": 1}}},
        "then": {"required": ["b"]},
        "else": {"required": ["a"]},
    },
]
"""What no grammar says."""
DEFINITIONS = {
    "Y": {
        "type": "object",
        "properties": {"n": {"anyOf": [{"$ref": "#/$defs/Y"}, {"type": "null"}]}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "Z": {"$ref": "#/$defs/X"},
    "Tree": {
        "type": "object",
        "properties": {
            "value": {"type": "integer"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "maxItems": 2},
        },
        "required": ["value"],
    },
}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
MOST = 3
"""Levels."""


class Schemas:
    """Draws from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def root(self) -> dict[str, Any]:
        """A schema with definitions that its parts may refer to."""
        schema = self._any(0)
        whole = schema if isinstance(schema, dict) else {}
        return {**whole, "$defs": {"X": self._leaf(), **DEFINITIONS}}

    def lean_root(self) -> dict[str, Any]:
        """A schema without definitions that nothing refers to, and often an object."""
        draw = self._random
        schema = self._object(0) if self._maybe(0.6) else self.root()
        refers = '"$ref"' in json.dumps({k: v for k, v in schema.items() if k != "$defs"})
        if refers:
            schema = {**schema, "$defs": {"X": self._leaf(), **DEFINITIONS}}
        else:
            schema.pop("$defs", None)
        if draw.random() < 0.2:
            schema = {"$schema": DRAFT, "title": "t", **schema}
        return schema

    def _maybe(self, share: float) -> bool:
        return self._random.random() < share

    def _any(self, depth: int) -> Any:
        if depth > MOST or self._maybe(0.35):
            return self._leaf()
        draw = self._random
        kinds = [*["object"] * 4, *["array"] * 2, "anyOf", "oneOf", "allOf", "$ref", ""]
        match draw.choice(kinds):
            case "object":
                return self._object(depth)
            case "array":
                return self._array(depth)
            case "$ref":
                named = draw.choice(["X", "Y", "Z", "Tree"])
                return {"$ref": f"#/$defs/{named}", "description": "d"}
            case "":
                untyped = [
                    {},
                    {"properties": {"a": self._leaf()}},
                    {"minLength": 2},
                    {"minimum": 3},
                    *REFUSED,
                ]
                return draw.choice([True, *untyped])
            case head:
                branches = [self._any(depth + 1) for _ in range(draw.randint(1, 3))]
                beside = {"type": draw.choice(["object", "string"])} if self._maybe(0.1) else {}
                return {head: branches, **beside}

    def _object(self, depth: int) -> dict[str, Any]:
        draw = self._random
        names = draw.sample(NAMES, draw.randint(0, 4))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._any(depth + 1) for name in names},
            "required": draw.sample(names, draw.randint(0, len(names))),
        }
        if self._maybe(0.2):
            schema["required"].append("zz")
        if self._maybe(0.3):
            schema["additionalProperties"] = draw.choice([True, False, self._leaf()])
        for name in ("minProperties", "maxProperties"):
            if self._maybe(0.1):
                schema[name] = draw.randint(0, 4)
        if self._maybe(0.05):
            schema["patternProperties"] = {"^k[0-9]+$": self._leaf()}
            if self._maybe(0.5):
                del schema["properties"], schema["required"]
        if self._maybe(0.05):
            schema["unevaluatedProperties"] = False
        if self._maybe(0.1):
            known = {"properties": {"id": self._leaf()}, "required": ["id"]}
            schema["anyOf"] = [{"required": [draw.choice(NAMES)]}, known]
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        draw = self._random
        schema: dict[str, Any] = {"type": "array"}
        if self._maybe(0.8):
            schema["items"] = self._any(depth + 1)
        if self._maybe(0.2):
            schema["prefixItems"] = [self._any(depth + 1) for _ in range(draw.randint(1, 2))]
        for name in ("minItems", "maxItems"):
            if self._maybe(0.3):
                schema[name] = draw.randint(0, 4)
        if self._maybe(0.05):
            schema["uniqueItems"] = self._maybe(0.3)
        if "prefixItems" in schema and self._maybe(0.3):
            schema["items" if self._maybe(0.5) else "unevaluatedItems"] = False
        return schema

    def _leaf(self) -> dict[str, Any]:
        draw = self._random
        bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
        some = draw.sample(bounds, draw.randint(0, 2))
        lengths = draw.sample(["minLength", "maxLength"], draw.randint(0, 2))
        types = draw.sample(["string", "integer", "null", "boolean", "number"], 2)
        leaves: list[dict[str, Any]] = [
            {"type": "integer", **{name: draw.randint(-20, 20) for name in some}},
            {"type": "number", **{name: round(draw.uniform(-20, 20), 2) for name in some}},
            {"type": "integer", "multipleOf": draw.choice([1, 3, 7])},
            {"type": draw.choice(["integer", "number"]), "multipleOf": draw.choice([5, 0.5, 0.01])},
            {"type": "integer", "multipleOf": draw.choice([1, 4]), bounds[0]: 2, bounds[1]: 90},
            {
                "type": "number",
                "multipleOf": draw.choice([0.01, 0.1, 0.25, 1.5, 7]),
                **{name: round(draw.uniform(-20, 20), 2) for name in some},
            },
            {"type": "string", **{name: draw.randint(0, 6) for name in lengths}},
            {"type": "string", "pattern": draw.choice(PATTERNS)},
            {"type": "string", "format": draw.choice(FORMATS)},
            {"type": ["string", "null"], **draw.choice([{}, {"pattern": draw.choice(PATTERNS)}])},
            {"type": "string", "nullable": True, "maxLength": 8, "default": "x"},
            {"enum": [f"value_{i}" for i in range(draw.randint(5, 60))]},
            {"enum": draw.sample(VALUES, draw.randint(1, 4)), "type": types},
            {"enum": draw.sample(VALUES, draw.randint(1, 4))},
            {"const": draw.choice(VALUES)},
            {"type": types, **draw.choice([{}, {"minLength": 1}, {"minimum": 0}])},
            {"type": "boolean"},
            draw.choice([{}, {}, {}, draw.choice(REFUSED)]),
        ]
        return draw.choice(leaves)
