"""Prometheus metrics that several processes of one engine share.

With PROMETHEUS_MULTIPROC_DIR set (before prometheus_client is imported) each process writes its
values into files there, and the exposition of any process is the sum of all: API processes and
core register theirs the same way. Without it everything lives in this process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GaugeMode = Literal["sum", "max", "min", "mostrecent", "livesum", "livemax", "livemostrecent"]


def build_1_2_5_buckets(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `largest`: the buckets of vLLM's token histograms."""
    buckets: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > largest:
                return tuple(buckets) or (1.0,)
            buckets.append(float(digit * power))
        power *= 10


class MetricRegistry:
    """Make metrics with one prefix; `model_name` and `engine` label every one of them."""

    def __init__(self, prefix: str, model_name: str) -> None:
        self._prefix = prefix
        self._labels = {"model_name": model_name, "engine": "0"}
        self._registry = CollectorRegistry()

    def counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        """A counter; `_total` is appended to its name when it is missing. With `labels` it still
        needs `.labels(name=value)`: keep what that returns."""
        made = Counter(
            self._prefix + name, documentation, [*self._labels, *labels], registry=self._registry
        )
        return made if labels else made.labels(**self._labels)

    def gauge(self, name: str, documentation: str, *, mode: GaugeMode = "livemostrecent") -> Gauge:
        """A gauge; `mode` says how the processes' values become one."""
        made = Gauge(
            self._prefix + name,
            documentation,
            list(self._labels),
            registry=self._registry,
            multiprocess_mode=mode,
        )
        return made.labels(**self._labels)

    def labelled_gauge(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        *,
        mode: GaugeMode = "livemostrecent",
    ) -> Gauge:
        """A gauge with further labels; it still needs `.labels(**registry.labels, ...)`."""
        return Gauge(
            self._prefix + name,
            documentation,
            [*self._labels, *labels],
            registry=self._registry,
            multiprocess_mode=mode,
        )

    def histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        """A histogram over `buckets` (upper bounds)."""
        made = Histogram(
            self._prefix + name,
            documentation,
            list(self._labels),
            registry=self._registry,
            buckets=buckets,
        )
        return made.labels(**self._labels)

    @property
    def labels(self) -> dict[str, str]:
        """The labels every metric has."""
        return self._labels

    def exposition(self) -> bytes:
        """Every process's metrics in the text format (CONTENT_TYPE)."""
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            return generate_latest(self._registry)
        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        return generate_latest(merged)
