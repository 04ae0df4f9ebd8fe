"""Counts and times of HTTP requests."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Histogram

from kvasir_engine.metric_registry import MetricRegistry

_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
OTHER_PATH = "other"


class HttpMetrics:
    """Requests by path and status. Unknown paths share one label, so labels stay few."""

    def __init__(self, registry: MetricRegistry, paths: Iterable[str]) -> None:
        self._labels = registry.labels
        self._paths = frozenset(paths)
        self._requests: Counter = registry.counter(
            "http_requests", "HTTP requests by path and status.", ["handler", "status"]
        )
        self._seconds: Histogram = registry.histogram(
            "http_response_start_seconds",
            "Seconds from a request's head to the head of its answer.",
            _BUCKETS,
        )
        self._children: dict[tuple[str, int], Counter] = {}

    def count(self, path: str, status: int, seconds: float) -> None:
        """An answer's head was sent."""
        key = (path if path in self._paths else OTHER_PATH, status)
        child = self._children.get(key)
        if child is None:
            child = self._requests.labels(**self._labels, handler=key[0], status=str(status))
            self._children[key] = child
        child.inc()
        self._seconds.observe(seconds)
