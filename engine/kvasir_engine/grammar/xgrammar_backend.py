"""Grammars by the xgrammar library, which is imported with the first of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import xgrammar as xgr

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import (
    MAX_WHITESPACE,
    Constraint,
    ConstraintKind,
    schemas_of_tag,
)
from kvasir_engine.grammar.constraint_error import NO_TEXT_HAS_IT, ConstraintError
from kvasir_engine.grammar.matcher import GrammarMatcher, num_words
from kvasir_engine.grammar.schema_limits import xgrammar_multiples
from kvasir_engine.grammar.schema_regex import patterns_of, xgrammar_reads
from kvasir_engine.step_plan import Int32Array

COMPILE_THREADS = 2
"""Threads of one compilation: what runs beside it needs the other cores."""


class XGrammarMatcher:
    """GrammarMatcher."""

    def __init__(self, compiled: xgr.CompiledGrammar, stop_ids: Sequence[int]) -> None:
        self.handle = xgr.GrammarMatcher(compiled, override_stop_tokens=list(stop_ids))
        self.num_accepted = 0

    def accept(self, token: int) -> bool:
        """GrammarMatcher.accept."""
        if self.handle.is_terminated() or not self.handle.accept_token(token):
            return False
        self.num_accepted += 1
        return True

    def restart(self) -> None:
        """GrammarMatcher.restart."""
        self.handle.reset()
        self.num_accepted = 0

    def fill(self, mask: Int32Array) -> None:
        """GrammarMatcher.fill."""
        self.fill_own([self], mask[None])

    @classmethod
    def fill_own(cls, matchers: Sequence[GrammarMatcher], masks: Int32Array) -> None:
        """BatchedMatcher.fill_own."""
        handles = []
        going = []
        for i, matcher in enumerate(matchers):
            # An output that has ended has no mask: whoever asks finds no token.
            if isinstance(matcher, cls) and not matcher.handle.is_terminated():
                going.append(i)
                handles.append(matcher.handle)
        if handles:
            _BATCH.batch_fill_next_token_bitmask(handles, masks, going)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens of a tokenizer, as the library takes them."""

    tokens: list[bytes]
    """Bytes by id; a special token has none."""
    special_ids: frozenset[int]
    eos_ids: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> Self:
        """Return that of a tokenizer."""
        special = frozenset(tokenizer.special_ids)
        # A token without bytes is never allowed, unless it ends the output.
        tokens = [
            b"" if token in special else tokenizer.token_bytes(token) for token in range(vocab_size)
        ]
        return cls(tokens, special, list(eos_ids))


class XGrammar:
    """Grammar."""

    def __init__(self, compiled: xgr.CompiledGrammar) -> None:
        self._compiled = compiled
        self.num_bytes: int = compiled.memory_size_bytes
        """Memory that it takes."""

    def written(self) -> str:
        """Return it as text, for XGrammarBackend.read."""
        text: str = self._compiled.serialize_json()
        return text

    def matcher(self, stop_ids: Sequence[int]) -> XGrammarMatcher:
        """Grammar.matcher."""
        return XGrammarMatcher(self._compiled, stop_ids)


class XGrammarBackend:
    """Compile constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def load(self) -> None:
        """Have the vocabularies sorted now, rather than with the first grammar of a kind."""
        for kind in ConstraintKind:
            self._tokens(kind)

    def _tokens(self, kind: ConstraintKind) -> xgr.TokenizerInfo:
        """Return the vocabulary that grammars of a kind are for."""
        match kind:
            case ConstraintKind.JSON:
                return self._json_tokens
            case ConstraintKind.STRUCTURAL_TAG:
                return self._tag_tokens
        return self._all_tokens

    @cached_property
    def _all_tokens(self) -> xgr.TokenizerInfo:
        return self._info(self._vocabulary.tokens)

    @cached_property
    def _json_tokens(self) -> xgr.TokenizerInfo:
        """Strings of bounded length would take control characters, which JSON has as escapes
        only."""
        tokens = self._vocabulary.tokens
        return self._info([b"" if _CONTROL.search(each) else each for each in tokens])

    @cached_property
    def _tag_tokens(self) -> xgr.TokenizerInfo:
        """Structural tags name special tokens by their ids. What has no bytes is not even allowed
        so; these bytes are no UTF-8, so that no text of a JSON value has them."""
        special = self._vocabulary.special_ids
        tokens = enumerate(self._vocabulary.tokens)
        return self._info([_NO_TEXT if token in special else each for token, each in tokens])

    def _info(self, tokens: list[bytes]) -> xgr.TokenizerInfo:
        return xgr.TokenizerInfo(
            tokens,
            xgr.VocabType.RAW,
            vocab_size=len(tokens),
            stop_token_ids=self._vocabulary.eos_ids,
        )

    def read(self, kind: ConstraintKind, written: str) -> XGrammar:
        """Return a grammar that `XGrammar.written` wrote, maybe in another process."""
        return XGrammar(xgr.CompiledGrammar.deserialize_json(written, self._tokens(kind)))

    def compile(self, constraint: Constraint) -> XGrammar:
        """Return the grammar of a constraint; holds no lock while it works. Raises
        ConstraintError."""
        try:
            made = XGrammar(self._compile(constraint))
        except (RuntimeError, ValueError) as error:
            raise ConstraintError(_reason(error)) from error
        mask = np.zeros((1, num_words(len(self._vocabulary.tokens))), dtype=np.int32)
        XGrammarMatcher.fill_own([made.matcher(self._vocabulary.eos_ids)], mask)
        if not mask.any():
            raise ConstraintError(NO_TEXT_HAS_IT)
        return made

    def _compile(self, constraint: Constraint) -> xgr.CompiledGrammar:
        text = constraint.text
        compiler = xgr.GrammarCompiler(
            self._tokens(constraint.kind), max_threads=COMPILE_THREADS, cache_enabled=False
        )
        match constraint.kind:
            case ConstraintKind.JSON:
                _check(json.loads(text))
                compiled: xgr.CompiledGrammar = compiler.compile_json_schema(
                    text, max_whitespace_cnt=MAX_WHITESPACE
                )
            case ConstraintKind.REGEX:
                compiled = compiler.compile_regex(text)
            case ConstraintKind.GRAMMAR:
                compiled = compiler.compile_grammar(text)
            case ConstraintKind.STRUCTURAL_TAG:
                for schema in schemas_of_tag(json.loads(text)):
                    _check(schema)
                compiled = compiler.compile_structural_tag(text)
        return compiled


def _check(schema: Any) -> None:
    """Raise ConstraintError for what the library takes for something wider, without a word."""
    if not xgrammar_multiples(schema):
        raise ConstraintError("xgrammar enforces multipleOf of integers without bounds only")
    for pattern in patterns_of(schema):
        if not xgrammar_reads(pattern):
            raise ConstraintError(f"xgrammar does not enforce the groups of the pattern {pattern}")


_NO_TEXT = b"\xff"
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
"""All but the line feed, which may stand between a value's parts."""
_BATCH = xgr.BatchGrammarMatcher("auto")


_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+\.(cc|h):\d+: ")


def _reason(error: Exception) -> str:
    """Return the library's sentence without the time and place that it begins with."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return _PLACE.sub("", text).rstrip(".")
