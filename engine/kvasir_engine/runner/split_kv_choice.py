"""Decide when split-KV pays: a few contexts are much longer than the others."""

from __future__ import annotations

from kvasir_engine.step_plan import Int32Array

MIN_LONG_CONTEXT = 4096
"""Tokens of a context, fewer of which are soon attended to by whatever programs."""
PROGRAM_SLOWDOWN = 16
"""A program attends to an entry's keys at this part of the speed that the GPU has for all
together, about (an H200, 8 KV heads: 17.5 ns a key, and 0.95)."""
MIN_ENTRIES_WITHOUT_SPLIT = 64
"""Entries from about which on each one's keys are a single program's; of fewer they are divided
among so many more."""


def needs_split_kv(lengths: Int32Array) -> bool:
    """Return whether the longest context would keep its programs busy long after all others have
    finished."""
    longest = int(lengths.max(initial=0))
    if longest < MIN_LONG_CONTEXT:
        return False
    divided = max(1, MIN_ENTRIES_WITHOUT_SPLIT // len(lengths))
    return longest * PROGRAM_SLOWDOWN > int(lengths.sum(dtype="int64")) * divided
