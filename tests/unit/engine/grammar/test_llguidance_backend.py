"""llguidance's grammars: whatever they let through satisfies the schema that was asked for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kvasir_engine.grammar import llguidance_backend
from kvasir_engine.grammar.constraint import Constraint, ConstraintKind, parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend, GuidanceMatcher
from kvasir_engine.grammar.matcher import num_words

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
def backend() -> GuidanceBackend:
    return GuidanceBackend(ByteTokenizer(), BYTES + 1, [END])  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_outputs_of_random_schemas_are_valid(backend: GuidanceBackend, seed: int) -> None:
    told = outputs_of_random_schemas(backend, seed)
    assert told["valid"] > 500, told
    assert told["endless or no UTF-8"] < told["valid"] / 20, told


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"type": "object"}, ["{}", '{"a": [1, null]}'], ["[]", "1", ""]),
        (
            {"type": "object", "properties": {"a": {"properties": {"b": {}}}}},
            ["{}", '{"a": {}}', '{"a": {"b": 1}}'],
            ['{"b": 1}', '{"a": {"c": 1}}', '{"a": {}, "b": 1}'],
        ),
        (
            {"type": "string", "maxLength": 2},
            ['"a"', '"éa"'],
            ['"abc"', '"\t"', '"\x01"', '"é'],
        ),
        ({"type": "string", "minLength": 300, "maxLength": 400}, [f'"{"a" * 400}"'], ['"a"']),
        (
            {"type": "array", "items": {"type": "integer"}},
            ["[1,2]", "[ 1 ]"],
            ["[" + " " * 40 + "1]"],
        ),
        ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "0", "12"], ["-4", "13", "1.0"]),
        (
            {"type": "number", "multipleOf": 0.01, "minimum": 0.05, "exclusiveMaximum": 2},
            ["0.05", "0.07", "1.5", "1.99"],
            ["0.04", "0.055", "2"],
        ),
        (
            {"type": "integer", "multipleOf": 7, "minimum": -10, "maximum": 20},
            ["-7", "0", "14"],
            ["-14", "21", "1"],
        ),
    ],
)
def test_what_schemas_take(
    backend: GuidanceBackend, schema: Any, taken: list[str], refused: list[str]
) -> None:
    asked = {"json": schema}
    assert [text for text in taken if not takes(backend, asked, text)] == []
    assert [text for text in refused if takes(backend, asked, text)] == []


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("regex", "a", "regex is another library's"),
        ("json", '{"type": "integer", "minimum": 3, "maximum": 1}', "minimum"),
        ("json", '{"not": {}}', "not"),
    ],
)
def test_what_it_does_not_enforce_is_refused(
    backend: GuidanceBackend, kind: str, text: str, words: str
) -> None:
    with pytest.raises(ConstraintError, match=words):
        backend.compile(Constraint(ConstraintKind(kind), text))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"lark": 'start: "a" start'}, "Too many items"),
        ({"lark": "start: T\nT: /a/ & /b/"}, "."),
    ],
)
def test_what_has_no_beginning_within_the_limits_is_refused(
    backend: GuidanceBackend, asked: Any, words: str
) -> None:
    with pytest.raises(ConstraintError, match=words):
        matcher_of(backend, asked)


def test_as_many_names_may_be_missing_as_a_schema_has(backend: GuidanceBackend) -> None:
    schema = {"properties": {f"k{i}": {"type": "null"} for i in range(1999)}}
    assert takes(backend, {"json": schema}, '{"k7": null, "k1998": null}')


def test_a_matcher_counts_what_it_took_and_begins_anew(backend: GuidanceBackend) -> None:
    matcher = matcher_of(backend, {"json": {"const": "ab"}})
    assert matcher.accept(ord('"'))
    assert not matcher.accept(ord("b"))
    assert matcher.num_accepted == 1
    assert following(matcher) == [ord("a")]
    matcher.restart()
    assert matcher.num_accepted == 0
    assert following(matcher) == [ord('"')]


def test_samples_of_one_grammar_go_their_own_ways(backend: GuidanceBackend) -> None:
    grammar = backend.compile(parse_constraint('{"json": {"enum": ["ab", "cd"]}}'))
    first, second = (grammar.matcher([END]) for _ in range(2))
    assert all(map(first.accept, b'"a'))
    assert all(map(second.accept, b'"c'))
    assert following(first) == [ord("b")]
    assert following(second) == [ord("d")]


def test_an_output_that_has_ended_takes_nothing(backend: GuidanceBackend) -> None:
    matcher = matcher_of(backend, {"json": {"const": 1}})
    assert not matcher.accept(END)
    assert matcher.accept(ord("1"))
    assert following(matcher) == [END]
    assert matcher.accept(END)
    assert following(matcher) == []
    assert not matcher.accept(ord("1"))


def test_other_stop_ids_end_it_alone_and_instead(backend: GuidanceBackend) -> None:
    grammar = backend.compile(parse_constraint('{"json": {"const": 1}}'))
    both, other = grammar.matcher([END, ord("!")]), grammar.matcher([ord("!")])
    assert both.accept(ord("1"))
    assert other.accept(ord("1"))
    assert following(both) == [ord("!"), END]
    assert following(other) == [ord("!")]
    assert not other.accept(END)
    assert other.accept(ord("!"))


def test_a_token_that_the_tokenizer_does_not_have_never_follows() -> None:
    backend = GuidanceBackend(ByteTokenizer(), BYTES + 40, [END])  # type: ignore[arg-type]
    matcher = matcher_of(backend, {"json": {"type": "string"}})
    assert matcher.accept(ord('"'))
    mask = np.zeros(num_words(BYTES + 40), dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert bits[:BYTES].any()
    assert not bits[BYTES : BYTES + 40].any()


def test_masks_are_filled_together_and_those_of_ended_outputs_are_left(
    backend: GuidanceBackend,
) -> None:
    matchers = [matcher_of(backend, {"json": {"enum": each}}) for each in ([1], [2], [1, 2])]
    assert matchers[1].accept(ord("2"))
    assert matchers[1].accept(END)
    masks = np.zeros((3, num_words(BYTES + 1)), dtype=np.int32)
    GuidanceMatcher.fill_own(matchers, masks)  # type: ignore[arg-type]
    one, two = 1 << (ord("1") % 32), 1 << (ord("2") % 32)
    assert [int(word) for word in masks[:, 1]] == [one, 0, one | two]


def test_what_grows_beyond_the_limits_goes_nowhere(backend: GuidanceBackend) -> None:
    matcher = matcher_of(backend, {"json": {"type": "object"}})
    matcher.handle.consume_token(ord("x"))  # type: ignore[attr-defined]
    assert matcher.handle.is_error()  # type: ignore[attr-defined]
    assert following(matcher) == []
    assert not matcher.accept(ord("{"))


def test_a_grammar_knows_about_its_size(backend: GuidanceBackend) -> None:
    text = json.dumps({"json": {"enum": ["a" * 10_000]}})
    small = backend.compile(parse_constraint('{"json_object": true}'))
    assert backend.compile(parse_constraint(text)).num_bytes > small.num_bytes + 9_000


def test_samples_side_by_side_share_no_lock(backend: GuidanceBackend) -> None:
    grammar = backend.compile(parse_constraint('{"json": {"type": "string"}}'))
    taken = [grammar.matcher([END]) for _ in range(3 * llguidance_backend._MAX_BUILT)]
    assert len(grammar._built) == llguidance_backend._MAX_BUILT
    for matcher in taken:
        assert matcher.accept(ord('"'))
        assert not matcher.accept(END)


def test_a_sample_alone_has_one_state_built(backend: GuidanceBackend) -> None:
    grammar = backend.compile(parse_constraint('{"json": {"type": "string"}}'))
    grammar.matcher([END])
    assert len(grammar._built) == 1


def test_what_takes_long_to_build_is_built_once(
    backend: GuidanceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llguidance_backend, "_CHEAP_SECONDS", 0.0)
    grammar = backend.compile(parse_constraint('{"json": {"type": "string"}}'))
    for _ in range(3):
        grammar.matcher([END])
    assert len(grammar._built) == 1


def test_tokens_of_forced_texts_are_looked_up_once(
    backend: GuidanceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = llguidance_backend._Vocabulary(ByteTokenizer(), BYTES + 1, END)
    asked: list[str] = []
    encode = vocabulary._encode

    def noted(text: str, **how: Any) -> list[int]:
        asked.append(text)
        return encode(text, **how)

    monkeypatch.setattr(vocabulary, "_encode", noted)
    long = b"x" * (llguidance_backend._CACHED_BYTES + 1)
    assert vocabulary(b"name") == vocabulary(b"name")
    assert vocabulary(long) == vocabulary(long)
    assert asked == ["name", long.decode(), long.decode()]
