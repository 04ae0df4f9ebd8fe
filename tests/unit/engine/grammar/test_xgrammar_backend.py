"""The library's grammars: whatever they let through satisfies the schema that was asked for."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from kvasir_engine.grammar.constraint import Constraint, ConstraintKind, parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.matcher import num_words
from kvasir_engine.grammar.xgrammar_backend import XGrammarBackend, XGrammarMatcher, fill_masks

from .random_schemas import Schemas

BYTES, END = 256, 256
SPACE = frozenset(b" \n\r\t")
CLOSING = frozenset(b'}]"')


class ByteTokenizer:
    """A token for each byte."""

    special_ids = frozenset({END})

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < BYTES else b""


@pytest.fixture(scope="module")
def backend() -> XGrammarBackend:
    return XGrammarBackend(ByteTokenizer(), BYTES + 1, [END])  # type: ignore[arg-type]


def matcher_of(backend: XGrammarBackend, asked: Any) -> XGrammarMatcher:
    return backend.compile(parse_constraint(json.dumps(asked))).matcher([END])


def following(matcher: XGrammarMatcher) -> list[int]:
    """Tokens that may follow."""
    mask = np.zeros(num_words(BYTES + 1), dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[: BYTES + 1]).tolist()


def takes(backend: XGrammarBackend, asked: Any, text: str) -> bool:
    """Whether `text` is a whole output."""
    matcher = matcher_of(backend, asked)
    return all(matcher.accept(byte) for byte in text.encode()) and END in following(matcher)


def walk(matcher: XGrammarMatcher, draw: random.Random) -> bytes | None:
    """A random output; None for one that does not end soon."""
    output = bytearray()
    for step in range(3000):
        allowed = following(matcher)
        assert allowed, f"a dead end after {bytes(output)!r}"
        if END in allowed and draw.random() < 0.5:
            return bytes(output)
        closing = [token for token in allowed if token in CLOSING]
        inked = [token for token in allowed if token not in SPACE]
        if closing and draw.random() < (0.2 if step < 200 else 0.9):
            token = draw.choice(closing)
        else:
            token = draw.choice(inked if inked and draw.random() < 0.95 else allowed)
        if token == END:
            return bytes(output)
        assert matcher.accept(token)
        output.append(token)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_outputs_of_random_schemas_are_valid(backend: XGrammarBackend, seed: int) -> None:
    schemas, draw = Schemas(seed), random.Random(seed)
    told: Counter[str] = Counter()
    for _ in range(400):
        schema = schemas.root()
        try:
            grammar = backend.compile(parse_constraint(json.dumps({"json": schema})))
        except ConstraintError:
            told["refused"] += 1
            continue
        for _ in range(3):
            output = walk(grammar.matcher([END]), draw)
            text = None if output is None else output.decode(errors="replace")
            if text is None or "\N{REPLACEMENT CHARACTER}" in text:
                told["endless or no UTF-8"] += 1
                continue
            told["valid"] += 1
            error = next(Draft202012Validator(schema).iter_errors(json.loads(text)), None)
            assert error is None, (text, schema)
    assert told["valid"] > 500, told
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
    fill_masks(matchers, masks)
    assert [int(word) for word in masks[:, 3]] == [2, 4, 6]


def test_a_grammar_knows_its_size(backend: XGrammarBackend) -> None:
    assert backend.compile(parse_constraint('{"json_object": true}')).num_bytes > 1000
