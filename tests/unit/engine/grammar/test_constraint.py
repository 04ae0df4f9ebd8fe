"""What a request may ask for, and what it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir_engine.grammar.constraint import MAX_BYTES, Constraint, ConstraintKind, parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"json": {"type": "integer"}}, "json", '{"type": "integer"}'),
        ({"json": '{"type": "integer"}'}, "json", '{"type": "integer"}'),
        ({"json_object": True}, "json", '{"type": "object"}'),
        ({"regex": "a|b"}, "regex", "a|b"),
        ({"grammar": 'root ::= "é"'}, "grammar", 'root ::= "é"'),
        ({"choice": ["a", 'b"\\\n']}, "grammar", 'root ::= "a" | "b\\"\\\\\\U0000000a"'),
        ({"structural_tag": {"type": "x"}}, "structural_tag", '{"type": "x"}'),
        (
            {"structural_tag": {"a": [{"json_schema": {"const": 1, "title": "t"}}]}},
            *("structural_tag", '{"a": [{"json_schema": {"enum": [1]}}]}'),
        ),
        ({"lark": 'start: "é"'}, "lark", 'start: "é"'),
    ],
)
def test_each_language_becomes_what_is_compiled(asked: Any, kind: str, text: str) -> None:
    constraint = parse_constraint(json.dumps(asked))
    assert constraint == Constraint(ConstraintKind(kind), text)
    assert Constraint.of_key(constraint.key) == constraint


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "exactly one of json,"),
        ('{"json": {}, "regex": "a"}', "exactly one of json,"),
        ('{"yaml": {}}', "'yaml' is not one of json,"),
        ('{"json": "{"}', "json is not JSON"),
        ('{"json": 5}', "must be a JSON schema"),
        ('{"json": {"enum": [NaN]}}', "NaN is no number"),
        ('{"json": "[-Infinity]"}', "-Infinity is no number"),
        ('{"json": {"enum": [1e999]}}', "a value that JSON cannot have"),
        ('{"json": {"const": "\\ud800"}}', "a value that JSON cannot have"),
        ('{"json": {"not": {}}}', "#/not cannot be enforced"),
        ('{"json_object": false}', "must be true"),
        ('{"regex": "(?=a)b"}', "regex has '\\(\\?', which cannot be enforced"),
        (
            '{"structural_tag": {"format": [{"json_schema": {"items": {"not": {}}}}]}}',
            "structural_tag/format/0/json_schema/items/not cannot be enforced",
        ),
        (
            '{"structural_tag": {"format": {"type": "regex", "pattern": "(?=a)"}}}',
            "structural_tag/format/pattern has",
        ),
        ('{"structural_tag": "{"}', "structural_tag is not JSON"),
        ('{"regex": ""}', "regex must be a string that is not empty"),
        ('{"grammar": 5}', "grammar must be a string"),
        ('{"lark": ["start"]}', "lark must be a string"),
        ('{"choice": []}', "1 to 1024 strings"),
        ('{"choice": ["a", ""]}', "1 to 1024 strings"),
        ('{"choice": "ab"}', "1 to 1024 strings"),
        ('{"structural_tag": 5}', "must be an object"),
        (json.dumps({"regex": "é" * (MAX_BYTES // 2)}), "more than 131072 bytes"),
    ],
)
def test_what_cannot_be_enforced_is_said(asked: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words):
        parse_constraint(asked)
