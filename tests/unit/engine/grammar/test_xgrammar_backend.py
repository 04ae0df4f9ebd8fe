"""The library's grammars: whatever they let through satisfies the schema that was asked for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kvasir_engine.grammar.constraint import Constraint, ConstraintKind, parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.matcher import num_words
from kvasir_engine.grammar.xgrammar_backend import Vocabulary, XGrammarBackend, XGrammarMatcher

from .walks import (
    BYTES,
    END,
    ByteTokenizer,
    following,
    matcher_of,
    outputs_of_random_schemas,
    takes,
)


@pytest.fixture(scope="module")
def backend() -> XGrammarBackend:
    return XGrammarBackend(Vocabulary.of(ByteTokenizer(), BYTES + 1, [END]))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_outputs_of_random_schemas_are_valid(backend: XGrammarBackend, seed: int) -> None:
    told = outputs_of_random_schemas(backend, seed)
    assert told["valid"] > 400, told
    assert told["endless or no UTF-8"] < told["valid"] / 20, told


@pytest.mark.parametrize(
    ("asked", "taken", "refused"),
    [
        ({"regex": r"[a-c]{2}\d"}, ["ab1"], ["ab", "abc", "ab12"]),
        ({"choice": ["yes", 'n"o\\\n']}, ["yes", 'n"o\\\n'], ["no", "yesn"]),
        ({"grammar": 'root ::= "(" root ")" | "é"'}, ["é", "((é))"], ["(é", "e"]),
        ({"json_object": True}, ["{}", '{"a": [1, null]}'], ["[]", "1", ""]),
        (
            {"json": {"type": "string", "maxLength": 2}},
            ['"a"', '"éa"'],
            ['"abc"', '"\t"', '"\x01"'],
        ),
        (
            {"json": {"type": "array", "items": {"type": "integer"}}},
            ["[1,2]", "[ 1 ]"],
            ["[" + " " * 40 + "1]"],
        ),
    ],
)
def test_what_each_language_takes(
    backend: XGrammarBackend, asked: Any, taken: list[str], refused: list[str]
) -> None:
    assert [text for text in taken if not takes(backend, asked, text)] == []
    assert [text for text in refused if takes(backend, asked, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "multipleOf": 1},
        {"type": "integer", "multipleOf": 0.5},
        {"properties": {"a": {"type": "integer", "multipleOf": 2, "minimum": 1}}},
    ],
)
def test_multiples_that_the_library_would_leave_out_are_refused(
    backend: XGrammarBackend, schema: Any
) -> None:
    with pytest.raises(ConstraintError, match="multipleOf of integers without bounds only"):
        matcher_of(backend, {"json": schema})


def test_a_property_may_be_named_like_a_keyword(backend: XGrammarBackend) -> None:
    named = {"type": "object", "properties": {"multipleOf": {"type": "number"}, "minimum": {}}}
    assert takes(backend, {"json": named}, '{"multipleOf": 0.5}')


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("regex", "(", "^Regex parsing error at position 2: The parenthesis is not closed$"),
        ("grammar", "root ::= (", "^EBNF parser error at line 1"),
        ("grammar", 'main ::= "a"', "root"),
        ("structural_tag", "{}", "."),
        ("json", '{"type": "integer", "minimum": 3, "maximum": 1}', "Invalid range"),
    ],
)
def test_what_does_not_compile_says_why_without_a_place_in_the_library(
    backend: XGrammarBackend, kind: str, text: str, words: str
) -> None:
    with pytest.raises(ConstraintError, match=words) as caught:
        backend.compile(Constraint(ConstraintKind(kind), text))
    assert ".cc" not in str(caught.value)


TAG = {"type": "structural_tag", "format": {"type": "json_schema"}}
TAG_OF_ONE = {**TAG, "format": {"type": "json_schema", "json_schema": {"const": 1}}}


@pytest.mark.parametrize("pattern", ["^(ab*)?$", "a|b", "((a))", "^(a){2}$"])
def test_patterns_that_it_takes_for_wider_ones_are_refused(
    backend: XGrammarBackend, pattern: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    tag = {**TAG, "format": {**TAG["format"], "json_schema": schema}}  # type: ignore[dict-item]
    for asked in ({"json": schema}, {"structural_tag": tag}):
        with pytest.raises(ConstraintError, match="does not enforce the groups of the pattern"):
            matcher_of(backend, asked)


@pytest.mark.parametrize(
    ("bounds", "taken", "refused"),
    [
        ({"maxLength": 2}, ['""', '"éa"'], ['"\t"', '"\x01"', '"abc"', '"\n"', '"""']),
        ({"minLength": 2}, ['"éa"', '"abcdef"'], ['"a"', '"a\t"']),
    ],
)
def test_strings_in_tags_have_no_control_characters(
    backend: XGrammarBackend, bounds: dict[str, int], taken: list[str], refused: list[str]
) -> None:
    # Names like keywords stay.
    schema = {"properties": {"maxLength": {"type": "string", **bounds}}, "required": ["maxLength"]}
    tag = {**TAG, "format": {"type": "json_schema", "json_schema": schema}}

    def right(text: str) -> bool:
        return takes(backend, {"structural_tag": tag}, f'{{"maxLength": {text}}}')

    assert [text for text in taken if not right(text)] == []
    assert [text for text in refused if right(text)] == []


def test_names_like_keywords_are_no_patterns(backend: XGrammarBackend) -> None:
    schema = {"properties": {"pattern": {"enum": [{"pattern": "((a))"}]}}, "required": ["pattern"]}
    assert takes(backend, {"json": schema}, '{"pattern": {"pattern":"((a))"}}')


def test_a_matcher_counts_what_it_took_and_begins_anew(backend: XGrammarBackend) -> None:
    matcher = matcher_of(backend, {"regex": "ab"})
    assert matcher.accept(ord("a"))
    assert not matcher.accept(ord("a"))
    assert matcher.num_accepted == 1
    assert following(matcher) == [ord("b")]
    matcher.restart()
    assert matcher.num_accepted == 0
    assert following(matcher) == [ord("a")]


def test_an_output_that_has_ended_takes_nothing(backend: XGrammarBackend) -> None:
    matcher = matcher_of(backend, {"regex": "a"})
    assert matcher.accept(ord("a"))
    assert following(matcher) == [END]
    assert matcher.accept(END)
    assert following(matcher) == []
    assert not matcher.accept(ord("a"))


def test_other_stop_ids_end_it_too(backend: XGrammarBackend) -> None:
    grammar = backend.compile(parse_constraint('{"regex": "a"}'))
    matcher = grammar.matcher([END, ord("!")])
    assert matcher.accept(ord("a"))
    assert following(matcher) == [ord("!"), END]


def test_masks_are_filled_together(backend: XGrammarBackend) -> None:
    matchers = [matcher_of(backend, {"regex": each}) for each in ("a", "b", "[ab]")]
    masks = np.zeros((3, num_words(BYTES + 1)), dtype=np.int32)
    XGrammarMatcher.fill_own(matchers, masks)
    assert [int(word) for word in masks[:, 3]] == [2, 4, 6]


def test_a_grammar_knows_its_size(backend: XGrammarBackend) -> None:
    assert backend.compile(parse_constraint('{"json_object": true}')).num_bytes > 1000


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"regex": "[ab]+c"}, "abc"),
        ({"json": {"const": 1}}, "1"),
        ({"structural_tag": TAG_OF_ONE}, "1"),
    ],
)
def test_a_written_grammar_is_the_same(backend: XGrammarBackend, asked: Any, text: str) -> None:
    constraint = parse_constraint(json.dumps(asked))
    read = backend.read(constraint.kind, backend.compile(constraint).written())
    matcher = read.matcher([END])
    assert all(map(matcher.accept, text.encode()))
    assert END in following(matcher)
    assert not matcher.accept(ord("x"))
