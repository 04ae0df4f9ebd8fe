"""Grammars by the xgrammar library, which is imported with the first of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import xgrammar as xgr

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import (
    MAX_WHITESPACE,
    Constraint,
    ConstraintKind,
    schemas_of_tag,
)
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.matcher import GrammarMatcher
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


class XGrammar:
    """Grammar."""

    def __init__(self, compiled: xgr.CompiledGrammar) -> None:
        self._compiled = compiled
        self.num_bytes: int = compiled.memory_size_bytes
        """Memory that it takes."""

    def matcher(self, stop_ids: Sequence[int]) -> XGrammarMatcher:
        """Grammar.matcher."""
        return XGrammarMatcher(self._compiled, stop_ids)


class XGrammarBackend:
    """Compile constraints for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._special, self._eos_ids = tokenizer.special_ids, eos_ids
        # A token without bytes is never allowed, unless it ends the output.
        vocabulary = [
            b"" if token in self._special else tokenizer.token_bytes(token)
            for token in range(vocab_size)
        ]
        self._vocabulary = vocabulary
        self._compiler = _compiler(vocabulary, eos_ids)
        # Strings of bounded length would take control characters, which JSON has as escapes only.
        plain = [b"" if _CONTROL.search(each) else each for each in vocabulary]
        self._json_compiler = _compiler(plain, eos_ids)

    @cached_property
    def _tag_compiler(self) -> xgr.GrammarCompiler:
        """Compiler of structural tags, which name special tokens by their ids. What has no bytes is
        not even allowed so; these bytes are no UTF-8, so that no text of a JSON value has them."""
        named = [
            _NO_TEXT if token in self._special else each
            for token, each in enumerate(self._vocabulary)
        ]
        return _compiler(named, self._eos_ids)

    def compile(self, constraint: Constraint) -> XGrammar:
        """Return the grammar of a constraint; holds no lock while it works. Raises
        ConstraintError."""
        try:
            return XGrammar(self._compile(constraint))
        except (RuntimeError, ValueError) as error:
            raise ConstraintError(_reason(error)) from error

    def _compile(self, constraint: Constraint) -> xgr.CompiledGrammar:
        text, compiler = constraint.text, self._compiler
        match constraint.kind:
            case ConstraintKind.JSON:
                _check_patterns(json.loads(text))
                compiled: xgr.CompiledGrammar = self._json_compiler.compile_json_schema(
                    text, max_whitespace_cnt=MAX_WHITESPACE
                )
            case ConstraintKind.REGEX:
                compiled = compiler.compile_regex(text)
            case ConstraintKind.GRAMMAR:
                compiled = compiler.compile_grammar(text)
            case ConstraintKind.STRUCTURAL_TAG:
                for schema in schemas_of_tag(json.loads(text)):
                    _check_patterns(schema)
                compiled = self._tag_compiler.compile_structural_tag(text)
        return compiled


def _check_patterns(schema: Any) -> None:
    for pattern in patterns_of(schema):
        if not xgrammar_reads(pattern):
            raise ConstraintError(f"xgrammar does not enforce the groups of the pattern {pattern}")


def _compiler(vocabulary: list[bytes], eos_ids: Sequence[int]) -> xgr.GrammarCompiler:
    info = xgr.TokenizerInfo(
        vocabulary,
        xgr.VocabType.RAW,
        vocab_size=len(vocabulary),
        stop_token_ids=list(eos_ids),
    )
    return xgr.GrammarCompiler(info, max_threads=COMPILE_THREADS, cache_enabled=False)


_NO_TEXT = b"\xff"
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
"""All but the line feed, which may stand between a value's parts."""
_BATCH = xgr.BatchGrammarMatcher("auto")


_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+\.(cc|h):\d+: ")


def _reason(error: Exception) -> str:
    """Return the library's sentence without the time and place that it begins with."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return _PLACE.sub("", text).rstrip(".")
