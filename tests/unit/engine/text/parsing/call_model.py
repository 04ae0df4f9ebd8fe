"""A model of a format of calls: its markers, grammars, random outputs, and what a parser reads."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from support.schema_judge import exact
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.grammar.matcher import GrammarMatcher, num_words
from kvasir_engine.text.detokenizer import make_detokenizer
from kvasir_engine.text.parsing.call_grammar import CallBlock, CallGrammar
from kvasir_engine.text.parsing.formats import HARMONY_REASONING, HARMONY_TOOLS, TOOL_FORMATS
from kvasir_engine.text.parsing.markers import MarkedDetokenizer
from kvasir_engine.text.parsing.message_parser import MessageParser, Parsing
from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.parsing.tool_machine import ToolSet

FORMATS = [each.name for each in TOOL_FORMATS if each.name != HARMONY_TOOLS]
BARE = {"llama3_json": '{"', "pythonic": "[NAME("}
"""Texts with which an answer begins that calls without a marker."""
END = "</s>"
PIECES = [
    *("\n</parameter>\n", "</parameter>", "\n</", "parameter", "<parameter=", "</function>", ">\n"),
    *('"}', "}}", "}]", '": ', '", "', '{"', "[1", "1]", ", ", "null", "true", "12", "functools"),
    *("<function=", "<tool_call>", "</tool_call>", "name", "\n\n", '"arguments": {', "a</"),
]
"""Tokens of several characters, which a model has and which end in one part and begin another."""


def tokenizer_of(pieces: Sequence[str]) -> Tokenizer:
    """A token for each byte, and others that no text is encoded with."""
    spelling = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelling += ["".join(part for part, _ in by_byte.pre_tokenize_str(each)) for each in pieces]
    backend = Backend(models.BPE(vocab={each: at for at, each in enumerate(spelling)}, merges=[]))
    backend.pre_tokenizer = by_byte
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    return Tokenizer(backend, {"eos_token": END})


class EndlessError(AssertionError):
    """A walk did not come to its end."""


class Model:
    """A format, and a tokenizer in which its markers are special tokens or text."""

    def __init__(
        self,
        name: str,
        *,
        special: bool | Sequence[str],
        pieces: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`special`: the markers that are special tokens, perhaps all of them."""
        self.tokenizer = tokenizer or tokenizer_of(pieces)
        end = self.tokenizer.special_id("eos_token")
        assert end is not None
        self.end = end
        self.format = next(each for each in TOOL_FORMATS if each.name == name)
        tokens = self.format.markers if special is True else special or ()
        self.tokenizer.backend.add_special_tokens(list(tokens))
        reasoning = HARMONY_REASONING if name == HARMONY_TOOLS else "none"
        self.parsing = Parsing.choose(self.tokenizer, None, tools=name, reasoning=reasoning)
        self.size = self.tokenizer.backend.get_vocab_size()
        self.grammars = GuidanceBackend(self.tokenizer, self.size, [self.end])
        single = {self.tokenizer.token_bytes(token): token for token in range(self.size)}
        self.ids = {text: token for text, token in single.items() if len(text) == 1}
        longer = range(256, 256 + len(pieces))
        self.closing = {*(self.ids[bytes([byte])] for byte in b'"}]'), *longer}
        self.ending = self.tokens("\n</parameter>\n")

    def calls(
        self, parameters: Mapping[str, Any], *, one_call: bool = False, strict: bool = False
    ) -> CallGrammar:
        names = parameters if strict else ()
        return CallGrammar(parameters, self.parsing.markers, one_call=one_call, strict=names)

    def opening(self, block: CallBlock, function: str, said: str) -> list[int]:
        """Text that leads to a call."""
        bare = BARE.get(self.format.name, "").replace("NAME", function)
        return self.tokens(f"{said}{block.opener}" if block.opener else bare)

    def matcher(self, form: str) -> GrammarMatcher:
        return self.grammars.compile(parse_constraint(form)).matcher([self.end])

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
        ending: list[int] = []
        while True:
            allowed = self.following(matcher)
            assert allowed, f"a dead end after {self.tokenizer.decode(output)!r}"
            if self.end in allowed and draw.random() < 0.4:
                return output
            closing = [token for token in allowed if token in self.closing]
            ending = ending[1:] or (self.ending if draw.random() < 0.05 else [])
            token = draw.choice(closing if closing and draw.random() < 0.5 else allowed)
            if ending and ending[0] in allowed:
                token = ending[0]
            if token == self.end:
                return output
            assert matcher.accept(token)
            output.append(token)
            if len(output) > 2000:
                raise EndlessError(self.tokenizer.decode(output)[-300:])

    def read(
        self, tokens: list[int], parameters: Mapping[str, Any]
    ) -> tuple[str, list[tuple[str, Any]]]:
        """Content, and name and arguments of each call, all of which have to be complete."""
        tools = ToolSet({name: it or {} for name, it in parameters.items()})
        parser = self.parsing.parser(tools, PromptEnd())
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
    return content, list(zip(names, map(exact, arguments), strict=True))
