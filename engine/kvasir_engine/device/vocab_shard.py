"""The part of the vocabulary whose logits one rank computes."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNED_TOKENS = 4
"""Tokens whose noise is one block of Philox: a shard that is sampled begins with such a block."""


@dataclass(frozen=True, slots=True)
class VocabShard:
    """Tokens `first` to `first + count` of the vocabulary; further columns of this rank's logits,
    which are as many on every rank, mean nothing."""

    first: int
    count: int
