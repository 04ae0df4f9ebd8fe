"""Grammars of JSON schemas and of calls by the llguidance library, which is imported with the first
of them.

Its masks of strings cost less than xgrammar's, and the length of a string costs nothing to compile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import MAX_WHITESPACE, Constraint, ConstraintKind
from kvasir_engine.grammar.constraint_error import NO_TEXT_HAS_IT, ConstraintError
from kvasir_engine.grammar.matcher import MASK_BITS, GrammarMatcher
from kvasir_engine.step_plan import Int32Array

SPACE = rf"[ \n]{{0,{MAX_WHITESPACE}}}"
_NUM_BYTES = 1 << 20
"""Estimate of a grammar's memory beside its text; the library does not tell it."""
_MAX_BUILT = 8
"""States of a grammar that share nothing."""
_CHEAP_SECONDS = 0.003
"""CPU time that building another one may take, on the thread that takes requests in."""
_CACHED_TEXTS = 4096
_CACHED_BYTES = 256
"""The longest text whose tokens are kept."""
_NO_TEXT = b"\xff"
"""First byte of a token that is no text, as the library has it."""
_LIMITS = LLParserLimits(
    # Four a property that may be missing, of which a schema has 2,000.
    max_items_in_row=10_000,
    step_max_items=200_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)


class GuidanceMatcher:
    """GrammarMatcher. Stop tokens are its own matter: the library knows one set for all samples."""

    def __init__(self, handle: LLMatcher, stop_ids: Sequence[int], hidden: int) -> None:
        """`hidden` is the token by which the library ends an output."""
        self.handle = handle
        self.num_accepted = 0
        self._stop_ids = frozenset(stop_ids)
        self._hidden = hidden
        self.ended = False
        """A stop token was taken in."""

    def accept(self, token: int) -> bool:
        """GrammarMatcher.accept."""
        if self.ended:
            return False
        if token in self._stop_ids:
            if not self.handle.is_accepting():
                return False
            self.ended = True
        elif not self.handle.try_consume_tokens([token]):
            return False
        self.num_accepted += 1
        return True

    def restart(self) -> None:
        """GrammarMatcher.restart."""
        self.handle.reset()
        self.num_accepted = 0
        self.ended = False

    def fill(self, mask: Int32Array) -> None:
        """GrammarMatcher.fill."""
        self.fill_own([self], mask[None])

    @classmethod
    def fill_own(cls, matchers: Sequence[GrammarMatcher], masks: Int32Array) -> None:
        """BatchedMatcher.fill_own."""
        going = [
            (each, at)
            for at, each in enumerate(matchers)
            if isinstance(each, cls) and not each.ended
        ]
        if going:
            handles = [(each.handle, at) for each, at in going]
            size = masks.shape[1] * masks.itemsize
            _EXECUTOR.unsafe_compute_mask_ptr(handles, masks.ctypes.data, size, len(masks))
            # All samples have the same vocabulary.
            word, bit = divmod(going[0][0]._hidden, MASK_BITS)
            if word < masks.shape[1]:
                masks.view(np.uint32)[[at for _, at in going], word] &= ~np.uint32(1 << bit)
        for each, at in going:
            each._set_stops(masks[at])

    def _set_stops(self, mask: Int32Array) -> None:
        """Let stop tokens follow where the output may end, in a mask that the library filled; none
        may follow where its limits ended the grammar."""
        if self.handle.is_error():
            mask[:] = 0
        elif self.handle.is_accepting():
            words = mask.view(np.uint32)
            for token in self._stop_ids:
                word, bit = divmod(token, MASK_BITS)
                if word < len(words):
                    words[word] |= np.uint32(1 << bit)


class GuidanceGrammar:
    """Grammar, and the library's states that its samples begin with.

    Copies of a state share what the library finds out about strings as it goes, and a lock: their
    masks are made one after the other. So several states are built for samples that run side by
    side.
    """

    def __init__(self, build: Callable[[], LLMatcher], num_bytes: int, hidden: int) -> None:
        """`build` makes a state anew; it raises ValueError where it cannot."""
        began = time.thread_time()
        self._built = [build()]
        self._is_cheap = time.thread_time() - began <= _CHEAP_SECONDS
        self._build = build
        self._copied = 0
        self.num_bytes = num_bytes
        self._hidden = hidden

    def matcher(self, stop_ids: Sequence[int]) -> GuidanceMatcher:
        """Grammar.matcher."""
        if self._copied and self._is_cheap and len(self._built) < _MAX_BUILT:
            self._built.append(self._build())
        self._copied += 1
        begun = self._built[self._copied % len(self._built)]
        return GuidanceMatcher(begun.deep_copy(), stop_ids, self._hidden)

    def trial(self) -> LLMatcher:
        """Return a state to be used once."""
        return self._built[0].deep_copy()


class GuidanceBackend:
    """Compile constraints for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._hidden = eos_ids[0]
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, self._hidden)),
            n_vocab=vocab_size,
            slices=LLTokenizer.json_slices(),
        )

    def compile(self, constraint: Constraint) -> GuidanceGrammar:
        """Return the grammar of a JSON schema, or of one in Lark. Raises ConstraintError, also for
        what the library does not enforce."""
        try:
            grammar = _grammar(constraint)
            build = partial(LLMatcher, self._tokenizer, grammar, log_level=0, limits=_LIMITS)
            compiled = GuidanceGrammar(build, _NUM_BYTES + len(grammar), self._hidden)
        except ValueError as error:
            raise ConstraintError(str(error)) from error
        self._try(compiled.trial())
        return compiled

    def _try(self, matcher: LLMatcher) -> None:
        """Raise ConstraintError where no output begins, or its first token exceeds the limits."""
        _check(matcher)
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        _check(matcher)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if not len(allowed):
            raise ConstraintError(NO_TEXT_HAS_IT)
        for token in allowed[allowed != self._hidden][:1].tolist():
            matcher.consume_token(token)
            _check(matcher)


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ConstraintError(matcher.get_error().partition("\n")[0])


def _grammar(constraint: Constraint) -> str:
    match constraint.kind:
        case ConstraintKind.JSON:
            return LLMatcher.grammar_from_json_schema(
                json.loads(constraint.text),
                overrides={"whitespace_flexible": True, "whitespace_pattern": SPACE},
            )
        case ConstraintKind.LARK:
            return LLMatcher.grammar_from_lark(constraint.text)
    raise ConstraintError(f"{constraint.kind} is another library's")


class _Vocabulary:
    """A tokenizer as the library takes it: the bytes of each token."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, eos_id: int) -> None:
        special = tokenizer.special_ids
        self._encode = tokenizer.encode
        self.eos_token_id = eos_id
        self.special_token_ids = sorted({*special, eos_id})
        # A special token is never allowed, nor is an id that the tokenizer does not have.
        self.tokens = [
            _NO_TEXT + b"%d" % token
            if token in special or token == eos_id
            else tokenizer.token_bytes(token) or _NO_TEXT + b"%d" % token
            for token in range(size)
        ]
        self._cached_tokens = lru_cache(_CACHED_TEXTS)(self._tokens_of)

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of a text, of which the first follows where no other text may.

        It is called, with the interpreter's lock, for each mask that allows one text alone: names
        of properties above all, which come again and again.
        """
        return (self._cached_tokens if len(text) <= _CACHED_BYTES else self._tokens_of)(text)

    def _tokens_of(self, text: bytes) -> list[int]:
        """Return the tokens of a text.

        Those of the tokenizer have other bytes where it puts a space in front, and where the text
        spells a special token, which stands for no text.
        """
        found = self._encode(text.decode(), add_special_tokens=False)
        spelt = b"".join(self.tokens[each] for each in found if each < len(self.tokens))
        if spelt == text:
            return found
        if spelt == b" " + text:
            return [*self._longest(self.tokens[found[0]][1:]), *found[1:]]
        return self._longest(text)

    def _longest(self, text: bytes) -> list[int]:
        """Return the tokens of a text of which each is as long as it can be."""
        made = []
        at = 0
        while at < len(text):
            sizes = range(min(self._max_bytes, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._ids), 0)
            if not size:
                break  # a byte that the tokenizer does not have: nothing can write the text
            made.append(self._ids[text[at : at + size]])
            at += size
        return made

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Tokens by their bytes."""
        return {each: token for token, each in enumerate(self.tokens)}

    @cached_property
    def _max_bytes(self) -> int:
        return max(map(len, self.tokens))


_EXECUTOR = LLExecutor()
