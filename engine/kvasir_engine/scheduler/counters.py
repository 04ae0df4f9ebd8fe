"""Counters of the scheduler since the start, its present load, and what ended lately."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from kvasir_engine.scheduler.sequence import Sequence

MAX_ENDED = 4096


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start; metrics and tests read them."""

    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found in the prefix cache, of those looked up."""
    steps: int = 0
    computed_tokens: int = 0
    """Tokens of prompts and of outputs that went through the model."""
    prefill_tokens: int = 0
    """Those of prompts; a preempted sequence's are counted again."""
    generated_tokens: int = 0
    chunked_prefills: int = 0
    """Chunks that did not end their prompt."""
    forks: int = 0
    max_queued: int = 0
    failed_steps: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """Present load of the scheduler."""

    running: int
    """Sequences that own a row."""
    waiting: int
    inflight_tokens: int
    """Tokens of admitted and waiting sequences whose KV is still to be computed."""
    kv_usage: float
    """0 to 1: blocks held by requests, of the fullest KV group."""


class EndedSequences:
    """The last MAX_ENDED sequences of clients that ended after a first token, for the metrics."""

    def __init__(self) -> None:
        self._ended: deque[Sequence] = deque(maxlen=MAX_ENDED)

    def record(self, sequence: Sequence) -> None:
        """Count a client's sequence among them, if it has had a token."""
        if sequence.times.first_token:
            sequence.times.ended = time.monotonic()
            self._ended.append(sequence)

    def take(self) -> list[Sequence]:
        """Return those since the last call."""
        ended = list(self._ended)
        self._ended.clear()
        return ended
