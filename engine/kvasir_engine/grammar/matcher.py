"""Place of one sample's output in its grammar. No torch, and no grammar library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from kvasir_engine.step_plan import Int32Array

MASK_BITS = 32
"""Tokens of one word of a mask: bit i of word w is token 32 * w + i, set where it may follow."""


class GrammarMatcher(Protocol):
    """State of a sample in its grammar: what it has taken in, and what may follow."""

    num_accepted: int
    """Output tokens taken in."""

    def accept(self, token: int) -> bool:
        """Take in the next output token; False, and nothing is taken in, where it may not
        follow."""
        ...

    def restart(self) -> None:
        """Forget what was taken in."""
        ...

    def fill(self, mask: Int32Array) -> None:
        """Write which tokens may follow into `mask`, int32 [words]."""
        ...


class Grammar(Protocol):
    """Compiled grammar, shared by all samples that it constrains."""

    def matcher(self, stop_ids: Sequence[int]) -> GrammarMatcher:
        """Return the state of a sample without output, which one of `stop_ids` ends."""
        ...


FillMasks: TypeAlias = Callable[[Sequence[GrammarMatcher], Int32Array], None]
"""Fills a mask for each matcher: matchers [n], masks int32 [n, words]."""


def num_words(vocab_size: int) -> int:
    """Return the words of a mask for a vocabulary."""
    return -(-vocab_size // MASK_BITS)


def fill_each(matchers: Sequence[GrammarMatcher], masks: Int32Array) -> None:
    """FillMasks, one after the other."""
    for matcher, mask in zip(matchers, masks, strict=True):
        matcher.fill(mask)
