"""Outputs that no grammar constrains, or not in their reasoning, which they begin with."""

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


class ThinkingMatcher:
    """GrammarMatcher of an output whose grammar begins behind its reasoning, if it has any."""

    def __init__(
        self, inner: GrammarMatcher, thinking: Thinking, barred: Sequence[int] = ()
    ) -> None:
        """`barred` are tokens that the reasoning has not."""
        self._inner = inner
        self._tokens = thinking
        self._barred = [divmod(token, MASK_BITS) for token in barred]
        self.restart()

    def restart(self) -> None:
        """GrammarMatcher.restart."""
        self.num_accepted = 0
        self._free = self._tokens.opened
        self._inner.restart()

    @property
    def _may_open(self) -> bool:
        return not self._tokens.opened and self.num_accepted == 0

    def accept(self, token: int) -> bool:
        """GrammarMatcher.accept."""
        if self._free:
            self._free = token != self._tokens.closer
        elif self._may_open and token == self._tokens.opener:
            self._free = True
        elif not self._inner.accept(token):
            return False
        self.num_accepted += 1
        return True

    def fill(self, mask: Int32Array) -> None:
        """GrammarMatcher.fill."""
        if self._free:
            mask[:] = ANY_TOKEN
            words = mask.view("uint32")
            for word, bit in self._barred:
                words[word] &= ~np.uint32(1 << bit)
            return
        self._inner.fill(mask)
        if self._may_open:
            word, bit = divmod(self._tokens.opener, MASK_BITS)
            mask[word : word + 1].view("uint32")[0] |= 1 << bit


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


def begin(
    grammar: Grammar,
    stop_ids: Sequence[int],
    thinking: Thinking | None,
    barred: Sequence[int] = (),
) -> GrammarMatcher:
    """Return the state of a sample without output, whose reasoning has no tokens of `barred`."""
    matcher = grammar.matcher(stop_ids)
    return matcher if thinking is None else ThinkingMatcher(matcher, thinking, barred)
