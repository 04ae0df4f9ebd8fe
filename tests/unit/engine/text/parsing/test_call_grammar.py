"""Calls that are enforced: whatever a grammar lets through, the format's own parser reads."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from support.engine_server import EOS, byte_tokenizer

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.matcher import GrammarMatcher, num_words
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.grammar.xgrammar_backend import XGrammarBackend
from kvasir_engine.text.detokenizer import make_detokenizer
from kvasir_engine.text.parsing.call_grammar import (
    CallGrammar,
    arguments_schema,
    strict_schema,
)
from kvasir_engine.text.parsing.formats import TOOL_FORMATS
from kvasir_engine.text.parsing.markers import MarkedDetokenizer
from kvasir_engine.text.parsing.message_parser import MessageParser, Parsing
from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.parsing.tool_machine import ToolSet

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "São Paulo", 'a "b"']},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "metric": {"type": "boolean"},
        "where": {
            "type": "object",
            "properties": {"x": {"type": "string", "maxLength": 4}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "days"],
}
PARAMETERS: dict[str, dict[str, Any] | None] = {"get_weather": WEATHER, "now": None}
TOOLS = [
    {"type": "function", "function": {"name": name, **({"parameters": it} if it else {})}}
    for name, it in PARAMETERS.items()
]
FORMATS = [each.name for each in TOOL_FORMATS if each.name not in ("openai", "pythonic", "gemma3")]
CALLS = (Kind.CALL, Kind.ARGUMENTS, Kind.CALL_END)
DRAWS = 25


class Model:
    """A format, and a tokenizer in which its markers are special tokens or text."""

    def __init__(self, name: str, *, special: bool) -> None:
        self.tokenizer: Tokenizer = byte_tokenizer()
        self.format = next(each for each in TOOL_FORMATS if each.name == name)
        if special:
            self.tokenizer.backend.add_special_tokens(list(self.format.markers))
        self.parsing = Parsing.choose(self.tokenizer, None, tools=name, reasoning="none")
        self.size = self.tokenizer.backend.get_vocab_size()
        self.grammars = XGrammarBackend(self.tokenizer, self.size, [EOS])
        self.ids = {self.tokenizer.token_bytes(token): token for token in range(256)}
        self.closing = {self.ids[bytes([byte])] for byte in b'"}]'}

    def calls(self, *, one_call: bool = False, **parameters: Any) -> CallGrammar:
        return CallGrammar(parameters or PARAMETERS, self.parsing.markers, one_call=one_call)

    def matcher(self, form: str) -> GrammarMatcher:
        return self.grammars.compile(parse_constraint(form)).matcher([EOS])

    def tokens(self, text: str) -> list[int]:
        """Ids of a text whose markers are spelt out."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def following(self, matcher: GrammarMatcher) -> list[int]:
        mask = np.zeros(num_words(self.size), dtype=np.int32)
        matcher.fill(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return [int(token) for token in np.flatnonzero(bits[: self.size])]

    def walk(self, matcher: GrammarMatcher, draw: random.Random) -> list[int]:
        """A random output from where `matcher` is."""
        output: list[int] = []
        while True:
            allowed = self.following(matcher)
            assert allowed, f"a dead end after {self.tokenizer.decode(output)!r}"
            if EOS in allowed and draw.random() < 0.4:
                return output
            closing = [token for token in allowed if token in self.closing]
            token = draw.choice(closing if closing and draw.random() < 0.5 else allowed)
            if token == EOS:
                return output
            assert matcher.accept(token)
            output.append(token)
            assert len(output) < 3000

    def read(self, tokens: list[int]) -> tuple[str, list[tuple[str, Any]]]:
        """Content, and name and arguments of each call, all of which have to be complete."""
        parser = self.parsing.parser(ToolSet.of(TOOLS), PromptEnd())
        assert parser is not None
        detokenizer = MarkedDetokenizer(
            make_detokenizer(self.tokenizer), self.parsing.signs(with_tools=True)
        )
        texts = [*map(detokenizer.push, tokens), detokenizer.flush()]
        return read_pieces(parser, texts)


def read_pieces(parser: MessageParser, texts: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    pieces = [piece for text in texts for piece in parser.push(text, last=False)]
    pieces += parser.push("", last=True)
    content = "".join(piece.text for piece in pieces if piece.kind is Kind.CONTENT)
    names = [piece.text for piece in pieces if piece.kind is Kind.CALL]
    arguments: list[str] = []
    for piece in pieces:
        if piece.kind is Kind.CALL:
            arguments.append("")
        elif piece.kind is Kind.ARGUMENTS:
            arguments[-1] += piece.text
    assert sum(piece.kind is Kind.CALL_END for piece in pieces) == len(names)
    return content, list(zip(names, map(json.loads, arguments), strict=True))


@cache
def model(name: str, special: bool) -> Model:
    return Model(name, special=special)


def check_calls(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        Draft202012Validator(PARAMETERS[name] or {"maxProperties": 0}).validate(arguments)
        assert arguments.keys() <= WEATHER["properties"].keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_has_to_call_does_and_says_nothing_else(name: str, special: bool) -> None:
    made = model(name, special)
    calls = made.calls()
    block = made.format.block(calls)
    assert block is not None
    draw, counts = random.Random(name), set()
    for _ in range(DRAWS):
        output = made.walk(made.matcher(calls.required(block)), draw)
        content, found = made.read(output)
        assert content == ""
        check_calls(found)
        counts.add(min(len(found), 2))
    assert counts == {1, 2}


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_is_no_more(name: str) -> None:
    made = model(name, True)
    calls = made.calls(one_call=True, now=None)
    block = made.format.block(calls)
    assert block is not None
    draw = random.Random(name)
    for _ in range(DRAWS):
        _, found = made.read(made.walk(made.matcher(calls.required(block)), draw))
        assert found == [("now", {})]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_what_begins_as_a_call_is_one_and_other_text_is_free(name: str, special: bool) -> None:
    made = model(name, special)
    calls = made.calls()
    block = made.format.block(calls)
    assert block is not None
    form = calls.permitted(block)
    free = made.matcher(form)
    assert all(map(free.accept, made.tokens("No tool is needed, 1 < 2.")))
    assert EOS in made.following(free)
    draw = random.Random(name)
    for _ in range(DRAWS):
        begun = made.matcher(form)
        said = made.tokens(f"Let me see. {block.opener}" if block.opener else '{"n')
        assert all(map(begun.accept, said))
        assert EOS not in made.following(begun)
        closed = []
        while EOS not in made.following(begun):
            token = draw.choice(made.following(begun))
            assert begun.accept(token)
            closed.append(token)
        content, found = made.read(said + closed)
        assert content == ("Let me see." if block.opener else "")
        assert found
        check_calls(found)


def test_nothing_but_the_marker_itself_begins_a_call_of_special_tokens() -> None:
    made = model("mistral", True)
    calls = made.calls()
    block = made.format.block(calls)
    assert block is not None
    [token] = made.tokens("[TOOL_CALLS]")
    matcher = made.matcher(calls.required(block))
    assert set(made.following(matcher)) == {token, made.ids[b"\n"]}
    free = made.matcher(calls.permitted(block))
    spelt = [made.ids[bytes([byte])] for byte in b"[TOOL_CALLS]"]
    assert all(map(free.accept, spelt))
    assert EOS in made.following(free)


def test_a_string_argument_holds_no_special_token() -> None:
    made = model("mistral", True)
    calls = made.calls(say={"type": "object", "properties": {"text": {"type": "string"}}})
    block = made.format.block(calls)
    assert block is not None
    matcher = made.matcher(calls.required(block))
    assert all(map(matcher.accept, made.tokens('[TOOL_CALLS]say[ARGS]{"text": "a')))
    assert max(made.following(matcher)) < 256


@pytest.mark.parametrize("name", ["openai", "pythonic", "gemma3"])
def test_formats_without_a_grammar_say_so(name: str) -> None:
    of_format = next(each for each in TOOL_FORMATS if each.name == name)
    assert of_format.block(model("hermes", False).calls()) is None


def test_what_a_schema_says_of_arguments_is_kept() -> None:
    found = arguments_schema(WEATHER)
    assert found["additionalProperties"] is False
    assert arguments_schema({"type": "object", "additionalProperties": True, "properties": {}})[
        "additionalProperties"
    ] in (True, {})
    assert arguments_schema(None) == {"type": "object", "additionalProperties": False}
    # Nothing is said of the properties, so any are allowed
    assert "additionalProperties" not in arguments_schema({})


def test_a_schema_that_no_grammar_enforces_is_any_object_unless_it_is_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    assert arguments_schema(schema) == {"type": "object"}
    with pytest.raises(SchemaError, match="#/properties/a/not cannot be enforced"):
        strict_schema(schema)
    with pytest.raises(SchemaError, match="#/type must be object"):
        strict_schema({"type": "string"})
