"""Metrics of requests in an API process; names and buckets are vLLM's."""

from __future__ import annotations

from kvasir_engine.metric_registry import MetricRegistry, build_1_2_5_buckets
from kvasir_engine.request import FinishReason
from kvasir_engine.sampling_params import SamplingParams

_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_BUCKETS = (
    # Below vLLM's first bucket, 10 ms, lie most steps of a small model.
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_MAX_TOKENS = 1_000_000


class ApiMetrics:
    """Metrics of one API process; children are made once, observing is a call."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.registry = registry
        self.step_age = registry.gauge(
            "last_step_age_seconds", "Age of the oldest unfinished step, 0 when idle."
        )
        self.prompt_reports_dropped = registry.counter(
            "prompt_reports_dropped",
            "Prompts and reports of prompts dropped because their maker or reader was behind.",
        )
        self._stale_files = registry.labelled_gauge(
            "stale_files",
            "1 while the last good content of a file is in use, since that of now is not good.",
            ["file"],
            mode="livemax",
        )
        tokens = build_1_2_5_buckets(_MAX_TOKENS)
        self.time_to_first_token = registry.histogram(
            "time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            _FIRST_TOKEN_BUCKETS,
        )
        self.inter_token_latency = registry.histogram(
            "inter_token_latency_seconds",
            "Seconds between two tokens of a request.",
            _TOKEN_BUCKETS,
        )
        self._time_per_output_token = registry.histogram(
            "request_time_per_output_token_seconds",
            "Mean seconds a token of a request, after its first.",
            _TOKEN_BUCKETS,
        )
        self._e2e_latency = registry.histogram(
            "e2e_request_latency_seconds",
            "Seconds from a request's arrival to its end.",
            _REQUEST_BUCKETS,
        )
        self._request_prompt_tokens = registry.histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", tokens
        )
        self._request_generation_tokens = registry.histogram(
            "request_generation_tokens", "Generated tokens of a request.", tokens
        )
        self._request_params_n = registry.histogram(
            "request_params_n", "The parameter n of a request.", (1, 2, 5, 10, 20)
        )
        self._request_params_max_tokens = registry.histogram(
            "request_params_max_tokens", "The parameter max_tokens of a request.", tokens
        )
        self._prompt_tokens = registry.counter("prompt_tokens", "Prompt tokens processed.")
        self._generation_tokens = registry.counter("generation_tokens", "Tokens generated.")
        success = registry.counter(
            "request_success", "Finished requests by the reason they ended.", ["finished_reason"]
        )
        self._success = {
            reason: success.labels(**registry.labels, finished_reason=reason.value)
            for reason in FinishReason
        }

    def file_reported(self, file: str, good: bool) -> None:
        """A file that is followed was looked at."""
        self._stale_files.labels(**self.registry.labels, file=file).set(not good)

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """A request has its first token."""
        self.time_to_first_token.observe(seconds)
        self._prompt_tokens.inc(prompt_tokens)

    def sample_finished(self, reason: FinishReason) -> None:
        """A sample ended."""
        self._success[reason].inc()

    def request_finished(
        self,
        params: SamplingParams,
        *,
        prompt_tokens: int,
        output_tokens: int,
        seconds: float,
        decode_seconds: float,
    ) -> None:
        """A request ended, in any way, after it was admitted."""
        self._generation_tokens.inc(output_tokens)
        self._e2e_latency.observe(seconds)
        self._request_prompt_tokens.observe(prompt_tokens)
        self._request_generation_tokens.observe(output_tokens)
        self._request_params_n.observe(params.n)
        if params.max_tokens is not None:
            self._request_params_max_tokens.observe(params.max_tokens)
        if output_tokens > 1:
            self._time_per_output_token.observe(decode_seconds / (output_tokens - 1))
