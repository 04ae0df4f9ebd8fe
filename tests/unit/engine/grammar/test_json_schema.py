"""What is made of a schema, and what is refused, by place and reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir_engine.grammar.json_schema import (
    MAX_COMPARED,
    MAX_DEPTH,
    MAX_SCHEMAS,
    enforceable,
)
from kvasir_engine.grammar.schema_keywords import SchemaError

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (True, {}),
        ({"title": "t", "description": "d", "default": 1, **INTEGER}, INTEGER),
        ({"x-own": 5, **STRING}, STRING),
        ({"minLength": 2}, {"type": "string", "minLength": 2}),
        ({"minimum": 2}, {"type": "number", "minimum": 2}),
        ({**STRING, "minimum": 2}, STRING),
        ({**STRING, "format": "phone"}, STRING),
        (
            {**INTEGER, "minimum": 2.5, "exclusiveMaximum": 7.5},
            {**INTEGER, "minimum": 3, "exclusiveMaximum": 8},
        ),
        ({"const": 5}, {"enum": [5]}),
        ({**STRING, "enum": ["a", 5, None]}, {"enum": ["a"]}),
        (
            {"allOf": [{"$ref": "#/$defs/X"}], "$defs": {"X": INTEGER}, "title": "t"},
            {"$ref": "#/$defs/X", "$defs": {"X": INTEGER}},
        ),
        (
            {"allOf": [an_object(a=STRING), an_object(b=INTEGER)]},
            closed(an_object(a=STRING, b=INTEGER)),
        ),
        (
            {"allOf": [{"type": ["integer", "string"]}, {"type": ["number", "null"]}]},
            {"type": ["integer"]},
        ),
        ({"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
        (
            {
                "type": "object",
                "properties": {"a": STRING},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            {
                "anyOf": [
                    closed(an_object(a=STRING)),
                    closed({**an_object(a=STRING, b={}), "required": ["b"]}),
                ]
            },
        ),
        (
            {"type": "object", "required": ["z"], "additionalProperties": INTEGER},
            {**an_object(z=INTEGER), "additionalProperties": INTEGER},
        ),
        (
            {"type": "array", "items": [STRING], "additionalItems": False},
            {"type": "array", "prefixItems": [STRING], "items": False},
        ),
        ({"type": "array", "uniqueItems": False}, {"type": "array", "uniqueItems": False}),
        ({**an_object(a=STRING), "minProperties": 1}, closed(an_object(a=STRING))),
        ({"type": "object"}, {"type": "object"}),
        (
            {"type": "object", "patternProperties": {"^a": INTEGER}},
            closed({"type": "object", "patternProperties": {"^a": INTEGER}}),
        ),
    ],
)
def test_what_is_compiled(schema: Any, made: Any) -> None:
    given = copy.deepcopy(schema)
    result = enforceable(schema)
    result.pop("uniqueItems", None)
    made.pop("uniqueItems", None)
    assert result == made
    assert schema == given, "the caller's schema is left alone"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (5, "# must be a schema"),
        (False, "# is false"),
        ({"properties": {"a": {"not": {}}}}, "#/properties/a/not cannot be enforced"),
        ({"allOf": [STRING, {"if": {}}]}, "#/allOf/1/if cannot be enforced"),
        ({"else": {}, "if": {}, "then": {}}, "#/if cannot be enforced"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems cannot be enforced"),
        ({"type": "text"}, "#/type must be one of string, integer"),
        ({"type": []}, "#/type must be one of"),
        ({"minLength": 1, "minimum": 2}, "# is of no type and has keywords of string, number"),
        ({**INTEGER, "minimum": "a"}, "#/minimum must be a number"),
        ({**INTEGER, "minimum": -(2**64)}, "#/minimum must fit into 64 bits"),
        ({**INTEGER, "minimum": float("nan")}, "#/minimum must be a number"),
        ({**INTEGER, "multipleOf": float("nan")}, "#/multipleOf must be a number"),
        ({**INTEGER, "multipleOf": 1025}, "#/multipleOf can be enforced up to 1024 units"),
        ({"type": "number", "multipleOf": 10.25}, "#/multipleOf can be enforced up to 1024 units"),
        ({"type": "number", "multipleOf": 1.63}, "#/multipleOf cannot be enforced exactly"),
        ({"type": "number", "multipleOf": 0}, "#/multipleOf must be more than 0"),
        ({**INTEGER, "multipleOf": 7, "minimum": 8, "maximum": 13}, "#/multipleOf leaves no numb"),
        (
            {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 1, "exclusiveMaximum": 1.5},
            "#/multipleOf leaves no number between the bounds",
        ),
        ({**INTEGER, "minimum": 3, "maximum": 2}, "#/minimum leaves no number"),
        ({**INTEGER, "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "#/exclusiveMinimum leaves no"),
        ({"type": "number", "exclusiveMinimum": 3, "maximum": 3}, "#/exclusiveMinimum leaves no"),
        ({**STRING, "minLength": 3, "maxLength": 2}, "#/minLength is more than maxLength"),
        ({**STRING, "minLength": 2.5}, "#/minLength must be an integer"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "#/minItems is more than maxItems"),
        ({"type": "array", "items": False, "minItems": 1}, "#/minItems is more than the items"),
        ({**an_object(a={}), "maxProperties": 0}, "#/maxProperties is less than the properties"),
        (closed({**an_object(a={}), "minProperties": 2}), "#/minProperties is more than the prop"),
        ({"$ref": "#"}, r"#/\$ref refers to itself"),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
            },
            r"#/\$defs/A/\$ref refers to itself",
        ),
        ({"allOf": [{"required": ["a"]}, {"required": [[]]}]}, "#/allOf/1/required must be an"),
        ({"oneOf": [{"enum": [1, [2]]}, {"enum": [[2.0]]}]}, "#/oneOf has branches that one value"),
        ({"oneOf": [{"enum": [{"a": 1}]}, {"type": "object"}]}, "#/oneOf has branches that one"),
        ({**STRING, "pattern": "a", "maxLength": 3}, "#/pattern cannot be .* with maxLength"),
        ({**STRING, "format": "date", "minLength": 3}, "#/format cannot be .* with minLength"),
        ({**STRING, "pattern": "(?!a)b"}, r"#/pattern has '\(\?', which cannot be enforced"),
        ({**STRING, "pattern": r"(a)\1"}, r"#/pattern has .*1', which cannot"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "#/oneOf has branches that one value"),
        ({"oneOf": [{"minimum": 1}, STRING]}, "#/oneOf has branches"),
        ({"anyOf": []}, "#/anyOf must have a schema"),
        ({"anyOf": {}}, "#/anyOf must be an array of schemas"),
        ({"allOf": [STRING, INTEGER]}, "#/allOf/1/type cannot be enforced together"),
        (
            {
                "allOf": [
                    {**an_object(a=STRING), "additionalProperties": False},
                    an_object(b=STRING),
                ]
            },
            "#/allOf/1 cannot be enforced together with what stands",
        ),
        ({"enum": []}, "#/enum must have 1 to 5000 values"),
        ({"enum": ["a"], "minLength": 1}, "#/enum cannot be enforced together with minLength"),
        (
            {"$ref": "#/$defs/X", "minimum": 1, "$defs": {"X": INTEGER}},
            r"#/\$ref cannot be enforced together with minimum",
        ),
        ({"$ref": "#/$defs/X"}, r"#/\$ref points to #/\$defs/X, which is not there"),
        ({"$ref": "http://a/b"}, r"#/\$ref is 'http://a/b'; it must be # or begin with #/"),
        ({"$ref": "#/$defs/a~1b", "$defs": {}}, "needs? no escapes"),
        ({"$ref": "#/x-own/a", "x-own": {"a": STRING}}, "which is"),
        ({"patternProperties": {"^a": {}, "^b": {}}}, "#/patternProperties can be enforced alone"),
        ({"patternProperties": {"(?=a)": {}}}, r"has '\(\?'"),
        ({"required": ["z"], "additionalProperties": False}, "#/required names 'z'"),
        ({"type": "object", "required": "a"}, "#/required must be an array of names"),
        ({"type": "object", "properties": []}, "#/properties must be an object of schemas"),
        ({"type": "object", "minProperties": 1}, "#/minProperties can be enforced with"),
        ({"type": "array", "prefixItems": {}}, "#/prefixItems must be an array"),
        ({"$defs": []}, r"#/\$defs must be an object of schemas"),
    ],
)
def test_what_is_refused_is_named(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        enforceable(schema)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = dict(STRING)
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    enforceable(nested(MAX_DEPTH))
    with pytest.raises(SchemaError, match="more than 64 levels deep"):
        enforceable(nested(depth))


def test_the_number_of_subschemas_is_bounded() -> None:
    properties = {f"p{i}": dict(STRING) for i in range(MAX_SCHEMAS)}
    with pytest.raises(SchemaError, match="one of more than 2000 subschemas"):
        enforceable({"type": "object", "properties": properties})


MANY = MAX_COMPARED + 1


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"required": [f"r{i}" for i in range(6000)], "anyOf": [True] * 2000},
            "#/anyOf has too many",
        ),
        (
            {
                "properties": {f"k{i}": {} for i in range(1000)},
                "oneOf": [{"required": [f"r{i}"]} for i in range(100)],
            },
            "#/oneOf has too many branches for what they are merged with",
        ),
        (
            {"allOf": [{"properties": {f"p{i}-{k}": {} for k in range(9)}} for i in range(1000)]},
            "# has too many branches for what they are merged with",
        ),
        ({"required": [f"r{i}" for i in range(2001)]}, "#/required makes more than 2000 prop"),
        ({"anyOf": [True] * 2001}, "#/anyOf has more than 2000 schemas; use fewer"),
        ({"allOf": [True] * 2001}, "#/allOf has more than 2000 schemas; use fewer"),
        (
            {"oneOf": [an_object(k={"const": i}) for i in range(MANY)]},
            f"#/oneOf has more than {MAX_COMPARED} branches to compare; use anyOf",
        ),
    ],
)
def test_the_work_that_a_schema_asks_for_is_bounded(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        enforceable(schema)


def test_many_values_are_told_apart_at_once() -> None:
    choice: dict[str, Any] = {"oneOf": [{"const": i} for i in range(1900)]}
    assert len(enforceable(choice)["anyOf"]) == 1900
    choice["oneOf"].append({"const": 7})
    with pytest.raises(SchemaError, match="one value may satisfy"):
        enforceable(choice)


def test_names_that_several_branches_require_are_required_once() -> None:
    named = [{"type": "object", "required": list(each)} for each in ("ab", "bc", "ca")]
    assert enforceable({"allOf": named})["required"] == ["a", "b", "c"]


def test_branches_that_refer_to_each_other_are_judged_by_what_they_are() -> None:
    definitions = {"A": {"$ref": "#/$defs/B"}, "B": {"const": 1}, "C": {"const": 2}}
    enforceable({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/C"}], "$defs": definitions})
    loop = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}
    with pytest.raises(SchemaError, match="refers to itself"):
        enforceable({"oneOf": [{"$ref": "#/$defs/A"}, {"const": 1}], "$defs": loop})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({**STRING, "format": "uri-reference"}, "#/format cannot be enforced in calls"),
        ({**STRING, "pattern": "[a"}, "#/pattern is no regular expression"),
        ({**STRING, "maxLength": 2.5}, "#/maxLength must be an integer"),
        ({**STRING, "maxLength": "2"}, "#/maxLength must be an integer"),
        ({**STRING, "minLength": -1}, "#/minLength must be 0 to"),
        ({"patternProperties": {"(": {}}}, "#/patternProperties/[(] is no regular expression"),
        ({"properties": {"a": {}}, "maxProperties": 1}, "#/maxProperties can be enforced in calls"),
        ({"maxProperties": True}, "#/maxProperties must be an integer"),
    ],
)
def test_calls_are_enforced_by_one_library_alone(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        enforceable(schema, in_calls=True)


def test_schemas_of_calls_are_as_that_library_has_them() -> None:
    given = {
        "properties": {"a": {**STRING, "pattern": r"^\d$"}},
        "required": ["a"],
        "maxProperties": 2.0,
        "unevaluatedProperties": False,
    }
    made = enforceable(given, in_calls=True)
    assert made["properties"] == {"a": {**STRING, "pattern": "^[0-9]$"}}
    assert (made["maxProperties"], made["additionalProperties"]) == (2, False)
    tuples = {"prefixItems": [INTEGER], "unevaluatedItems": False}
    assert enforceable(tuples) == {"type": "array", "prefixItems": [INTEGER], "items": False}
