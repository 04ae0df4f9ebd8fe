"""Outputs that no grammar constrains, or not in their reasoning, which they begin with and which a
budget may end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvasir_engine.grammar.matcher import MASK_BITS, Grammar, GrammarMatcher
from kvasir_engine.step_plan import Int32Array

ANY_TOKEN = -1
"""Word of a mask that lets all of its tokens follow."""


@dataclass(slots=True)
class Thinking:
    """Tokens around the reasoning that an output may begin with."""

    opener: int
    closer: int
    opened: bool
    """The prompt ends with the opener."""
    budget: int | None = None
    """Tokens between the two, after which only the closer may follow; None = any number."""

    @property
    def num_unmasked(self) -> int:
        """Output tokens that the budget leaves free whatever they are."""
        return (self.budget or 0) + (not self.opened)


class ThinkingMatcher:
    """GrammarMatcher of an output whose grammar, if it has one, begins behind its reasoning, if it
    has any. What was resumed may exceed the budget: the closer follows it."""

    def __init__(
        self, inner: GrammarMatcher | None, thinking: Thinking, barred: Sequence[int] = ()
    ) -> None:
        """`barred` are tokens that reasoning before a grammar has not."""
        self._inner = inner
        self._tokens = thinking
        self._barred = [divmod(token, MASK_BITS) for token in barred]
        self.restart()

    def restart(self) -> None:
        """GrammarMatcher.restart."""
        self.num_accepted = 0
        self._free = self._tokens.opened
        self._spent = 0
        if self._inner is not None:
            self._inner.restart()

    @property
    def num_unmasked(self) -> int:
        """Output tokens that need no mask, whatever they are."""
        return self._tokens.num_unmasked if self._inner is None else 0

    @property
    def is_over(self) -> bool:
        """True if no further token needs a mask."""
        return self._inner is None and not self._free and not self._may_open

    @property
    def _may_open(self) -> bool:
        return not self._tokens.opened and self.num_accepted == 0

    def accept(self, token: int) -> bool:
        """GrammarMatcher.accept."""
        if self._free:
            self._free = token != self._tokens.closer
            self._spent += 1
        elif self._may_open and token == self._tokens.opener:
            self._free = True
        elif self._inner is not None and not self._inner.accept(token):
            return False
        self.num_accepted += 1
        return True

    def fill(self, mask: Int32Array) -> None:
        """GrammarMatcher.fill."""
        budget = self._tokens.budget
        if self._free and budget is not None and self._spent >= budget:
            mask[:] = 0
            _allow(mask, self._tokens.closer)
        elif self._free or self._inner is None:
            mask[:] = ANY_TOKEN
            if self._inner is not None:
                words = mask.view("uint32")
                for word, bit in self._barred:
                    words[word] &= ~np.uint32(1 << bit)
        else:
            self._inner.fill(mask)
            if self._may_open:
                _allow(mask, self._tokens.opener)


class FreeMatcher:
    """GrammarMatcher of an output that anything may follow, whatever it is so far."""

    def __init__(self) -> None:
        self.num_accepted = 0

    def restart(self) -> None:
        """GrammarMatcher.restart."""
        self.num_accepted = 0

    def accept(self, token: int) -> bool:
        """GrammarMatcher.accept."""
        self.num_accepted += 1
        return True

    def fill(self, mask: Int32Array) -> None:
        """GrammarMatcher.fill."""
        mask[:] = ANY_TOKEN


def _allow(mask: Int32Array, token: int) -> None:
    word, bit = divmod(token, MASK_BITS)
    mask[word : word + 1].view("uint32")[0] |= 1 << bit


def begin(
    grammar: Grammar | None,
    stop_ids: Sequence[int],
    thinking: Thinking | None,
    barred: Sequence[int] = (),
) -> GrammarMatcher | None:
    """Return the state of a sample without output, whose reasoning before a grammar has no tokens
    of `barred`; None if any token may always follow."""
    matcher = None if grammar is None else grammar.matcher(stop_ids)
    if thinking is None or (matcher is None and thinking.budget is None):
        return matcher
    return ThinkingMatcher(matcher, thinking, barred)


def num_unmasked(matcher: GrammarMatcher) -> int:
    """Return how many output tokens need no mask, whatever they are."""
    return matcher.num_unmasked if isinstance(matcher, ThinkingMatcher) else 0


def is_over(matcher: GrammarMatcher) -> bool:
    """Return whether no token behind those that it has taken in needs a mask."""
    if isinstance(matcher, ThinkingMatcher):
        return matcher.is_over
    return isinstance(matcher, FreeMatcher)
