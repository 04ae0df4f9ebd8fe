"""Counters of the scheduler since the start, and its present load."""

from __future__ import annotations

from dataclasses import dataclass


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
