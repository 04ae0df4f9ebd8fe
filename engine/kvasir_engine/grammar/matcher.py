"""Place of one sample's output in its grammar. No torch, and no grammar library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast

import numpy as np

from kvasir_engine.step_plan import Int32Array, Int64Array

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


class BatchedMatcher(GrammarMatcher, Protocol):
    """GrammarMatcher of a library that fills several masks at once."""

    @classmethod
    def fill_own(cls, matchers: Sequence[GrammarMatcher], masks: Int32Array) -> None:
        """Fill the masks of the matchers of this class, and leave those of others."""
        ...


def fill_together(matchers: Sequence[GrammarMatcher], masks: Int32Array) -> None:
    """FillMasks: those of each library at once, others one after the other."""
    kinds = dict.fromkeys(map(type, matchers))
    batched = [kind for kind in kinds if hasattr(kind, "fill_own")]
    for kind in batched:
        cast("type[BatchedMatcher]", kind).fill_own(matchers, masks)
    for matcher, mask in zip(matchers, masks, strict=True):
        if type(matcher) not in batched:
            matcher.fill(mask)


def only_tokens(masks: Int32Array, set_words: Int64Array) -> dict[int, int]:
    """Return the token of each mask that allows a single one, by its index in `masks`
    [n, words]; `set_words` [n] says in how many words a mask allows any."""
    single = np.flatnonzero(set_words == 1)
    words = masks[single].view(np.uint32)
    at = words.argmax(axis=1)
    bits = words[np.arange(len(single)), at].tolist()
    return {
        index: word * MASK_BITS + set_bits.bit_length() - 1
        for index, word, set_bits in zip(single.tolist(), at.tolist(), bits, strict=True)
        if set_bits & (set_bits - 1) == 0
    }


def num_words(vocab_size: int) -> int:
    """Return the words of a mask for a vocabulary."""
    return -(-vocab_size // MASK_BITS)
