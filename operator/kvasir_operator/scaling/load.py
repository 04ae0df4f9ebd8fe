"""The load of one model, of the reports of all routers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvasir_operator.external_metrics.combine import METRICS

WINDOW_SECONDS = 60.0
"""Seconds that the counts and percentiles of routers look back."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one model."""

    concurrency: float = 0.0
    """Requests that run or wait, also those that routers hold while there is no replica."""
    queue: float = 0.0
    """Requests that wait."""
    in_flight_tokens: float = 0.0
    """Prompt tokens that are still to be computed."""
    kv_usage: float = 0.0
    """Share of the KV cache in use, the mean over replicas."""
    requests: float = 0.0
    """Requests that ended in the window."""
    ttft: float | None = None
    """Seconds to the first token, the 90th percentile in the window; None = no stream began."""
    itl: float | None = None
    """Seconds between tokens, the 90th percentile in the window; None = no stream ended."""

    @property
    def idle(self) -> bool:
        """True if there is no request, and was none in the window."""
        return self.concurrency == 0 and self.requests == 0


def load_of(reports: Sequence[Mapping[str, Any]]) -> Load:
    """Combine the reports of all routers that know a model."""

    def of(metric: str) -> float:
        return METRICS[f"kvasir_{metric}"](reports) or 0.0

    return Load(
        concurrency=of("concurrency"),
        queue=of("queue"),
        in_flight_tokens=of("in_flight_tokens"),
        kv_usage=of("kv_usage"),
        requests=of("requests"),
        ttft=METRICS["kvasir_ttft_seconds_p90"](reports),
        itl=METRICS["kvasir_itl_seconds_p90"](reports),
    )
