"""Combination of every router's report into one number a metric.

A router sees the requests that came to it, and what the engines tell of everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
Combine = Callable[[Sequence[Report]], float | None]


def _field(report: Report, path: str) -> float | None:
    value: Any = report
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _total(path: str) -> Combine:
    return lambda reports: sum(_field(report, path) or 0.0 for report in reports)


def _extreme(path: str, pick: Callable[[list[float]], float]) -> Combine:
    def combine(reports: Sequence[Report]) -> float | None:
        known = [value for report in reports if (value := _field(report, path)) is not None]
        return pick(known) if known else None

    return combine


def _queue(reports: Sequence[Report]) -> float:
    """Return the requests that wait in each router, and those in the engines, which every router
    reports."""
    held = [_field(report, "held") or 0.0 for report in reports]
    queued = [_field(report, "queue") or 0.0 for report in reports]
    return sum(held) + max((q - h for q, h in zip(queued, held, strict=True)), default=0.0)


METRICS: dict[str, Combine] = {
    "kvasir_concurrency": _total("concurrency"),
    "kvasir_average_concurrency": _total("average.concurrency"),
    "kvasir_queue": _queue,
    "kvasir_in_flight_tokens": _extreme("in_flight_tokens", max),
    "kvasir_kv_usage": _extreme("kv_usage", max),
    "kvasir_average_kv_usage": _extreme("average.kv_usage", max),
    "kvasir_requests": _total("requests"),
    "kvasir_slo_ratio": _extreme("slo.ratio", min),
    **{
        f"kvasir_{kind}_seconds_{percentile}": _extreme(f"{kind}_seconds.{percentile}", max)
        for kind in ("ttft", "itl")
        for percentile in ("p50", "p90", "p99")
    },
}
"""Metrics that can be asked for, by name. `average` and percentiles are of the last minute; of
several routers' percentiles it is the worst one."""


def quantity(value: float) -> str:
    """A number as Kubernetes writes it: a fraction is given in thousandths."""
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"
