"""The core's metrics, under vLLM's names: queue, KV cache, steps, and each request's phases."""

from __future__ import annotations

from kvasir_engine.core.build import Core
from kvasir_engine.metric_registry import MetricRegistry, build_1_2_5_buckets
from kvasir_engine.scheduler.counters import SchedulerLoad
from kvasir_engine.scheduler.sequence import Sequence

_SECONDS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 240.0)
"""vLLM's request buckets, finer below 0.3 s and coarser above 10 s."""
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class CoreMetrics:
    """Read the scheduler's totals after each turn of the loop (AfterStep)."""

    def __init__(self, registry: MetricRegistry, core: Core, block_size: int) -> None:
        gauge, counter, histogram = registry.gauge, registry.counter, registry.histogram
        self._running = gauge("num_requests_running", "Sequences that own a row.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait for a row.")
        self._usage = gauge("kv_cache_usage_perc", "KV blocks held by requests, 0 to 1.")
        self._queries = counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._hits = counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self._preemptions = counter("num_preemptions", "Sequences preempted.")
        self._failed = counter("failed_steps", "Steps that failed.")
        self._step_tokens = histogram("iteration_tokens_total", "Tokens a step.", _STEP_TOKENS)
        self._times = {
            name: histogram(f"request_{name}_time_seconds", text, _SECONDS)
            for name, text in (
                ("queue", "From arrival to the first step."),
                ("prefill", "From the first step to the first token."),
                ("decode", "From the first token to the last."),
                ("inference", "From the first step to the last token."),
            )
        }
        self._preempted = histogram(
            "request_num_preemptions", "Preemptions of a request.", build_1_2_5_buckets(100)
        )
        self._computed = histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens computed, not found in the prefix cache.",
            build_1_2_5_buckets(core.scheduler.max_model_len),
        )
        info = registry.labelled_gauge(
            "cache_config_info", "Of the KV cache.", ("block_size", "num_gpu_blocks")
        )
        blocks = "/".join(str(count) for count in core.built_runner.num_blocks)
        info.labels(**registry.labels, block_size=str(block_size), num_gpu_blocks=blocks).set(1)
        self._seen = (0, 0, 0, 0, 0, 0)

    def __call__(self, core: Core, load: SchedulerLoad | None) -> None:
        """AfterStep."""
        scheduler = core.scheduler
        if load is not None:
            self._running.set(load.running)
            self._waiting.set(load.waiting)
            self._usage.set(load.kv_usage)
        totals = scheduler.counters
        steps, tokens, queries, hits, preemptions, failed = self._seen
        if totals.steps > steps:
            self._step_tokens.observe(totals.computed_tokens - tokens)
        if totals.prefix_queries > queries:
            self._queries.inc(totals.prefix_queries - queries)
            self._hits.inc(totals.prefix_hits - hits)
        if totals.preemptions > preemptions:
            self._preemptions.inc(totals.preemptions - preemptions)
        if totals.failed_steps > failed:
            self._failed.inc(totals.failed_steps - failed)
        self._seen = (
            totals.steps,
            totals.computed_tokens,
            totals.prefix_queries,
            totals.prefix_hits,
            totals.preemptions,
            totals.failed_steps,
        )
        for sequence in scheduler.ended.take():
            self._observe(sequence)

    def close(self) -> None:
        """AfterStep.close."""

    def _observe(self, sequence: Sequence) -> None:
        """A sequence has produced its last token."""
        at = sequence.times
        self._times["queue"].observe(at.started - at.queued)
        self._times["prefill"].observe(at.first_token - at.started)
        self._times["decode"].observe(at.ended - at.first_token)
        self._times["inference"].observe(at.ended - at.started)
        self._preempted.observe(sequence.num_preemptions)
        self._computed.observe(sequence.num_prompt - (sequence.num_cached or 0))
