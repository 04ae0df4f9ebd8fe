"""Random JSON schemas of every keyword that people use, and some that cannot be enforced."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["a", "b", "name", "x y", "é", 'q"', "id", "k"]
VALUES: list[Any] = ["a", "b", 1, 2.5, None, True, {"a": 1}, [1, "x"], 'é"\n']
PATTERNS = ["^[a-z]{2,5}$", "[0-9]+", "^(foo|bar)$", r"^\d{3}-\w+$", "^a.b$", "x?y", "^[^0-9]$"]
FORMATS = ["date", "date-time", "email", "uuid", "ipv4", "phone", "time"]
DEFINITIONS = {
    "Y": {
        "type": "object",
        "properties": {"n": {"anyOf": [{"$ref": "#/$defs/Y"}, {"type": "null"}]}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "Z": {"$ref": "#/$defs/X"},
}
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
                return {"$ref": "#/$defs/" + draw.choice("XYZ"), "description": "d"}
            case "":
                untyped = [
                    {},
                    {"properties": {"a": self._leaf()}},
                    {"minLength": 2},
                    {"minimum": 3},
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
            schema["uniqueItems"] = True
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
            {"type": "string", **{name: draw.randint(0, 6) for name in lengths}},
            {"type": "string", "pattern": draw.choice(PATTERNS)},
            {"type": "string", "format": draw.choice(FORMATS)},
            {"enum": draw.sample(VALUES, draw.randint(1, 4)), "type": types},
            {"enum": draw.sample(VALUES, draw.randint(1, 4))},
            {"const": draw.choice(VALUES)},
            {"type": types, **draw.choice([{}, {"minLength": 1}, {"minimum": 0}])},
            {"type": "boolean"},
            {"not": {"type": "string"}},
            {},
        ]
        return draw.choice(leaves)
