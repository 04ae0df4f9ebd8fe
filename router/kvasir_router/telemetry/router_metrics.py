"""The router's Prometheus metrics, all prefixed `kvasir_router_`.

What a request touches are plain numbers (a prometheus_client child costs several times as much);
the collector turns them into metric families at each scrape. Labels are bounded: a model is one
that discovery names (requests for others have an empty model), and a series goes with its model or
replica.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kvasir import __version__
from kvasir_router import compiled
from kvasir_router.telemetry.model_metrics import ModelMetrics

PREFIX = "kvasir_router_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_BY_RESULT = ("model", "result")


class Metrics:
    """Metrics of one router, in a registry of their own."""

    def __init__(self) -> None:
        self.models: dict[str, ModelMetrics] = {}
        self.connections = 0
        self.dropped_log_lines = 0
        self.dropped_spans = 0
        self.discovery_reads: Counter[str] = Counter()
        self.discovery_good = False
        self.task_failures: Counter[str] = Counter()
        self.body_bytes: Callable[[], int] = lambda: 0
        self.transcript_bytes: Callable[[], int] = lambda: 0
        self._registry = CollectorRegistry()
        self._registry.register(_RouterCollector(self))

    def model(self, name: str) -> ModelMetrics:
        """Return the metrics of a model that discovery names, or "" for requests that reach
        none."""
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = ModelMetrics()
        return found

    def keep_models(self, names: set[str]) -> None:
        """Drop the series of models that are gone."""
        for name in self.models.keys() - names - {""}:
            del self.models[name]

    def discovery_reported(self, good: bool) -> None:
        self.discovery_reads["ok" if good else "refused"] += 1
        self.discovery_good = good

    def spans_were_dropped(self, count: int) -> None:
        self.dropped_spans += count

    def log_line_dropped(self) -> None:
        self.dropped_log_lines += 1

    def register(self, collector: Collector) -> None:
        """Add what it collects to the text."""
        self._registry.register(collector)

    def collect(self) -> Iterable[Metric]:
        """All families."""
        return self._registry.collect()

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _RouterCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        build = gauge("build_info", "1; what runs, and in which form.", "version", "compiled")
        build.add_metric((__version__, str(compiled.in_use()).lower()), 1)
        yield build
        yield from self._models()
        yield from self._failover()
        reads = counter("discovery_reads", "Times discovery was read, by result.", "result")
        for result, count in metrics.discovery_reads.items():
            reads.add_metric((result,), count)
        yield reads
        good = gauge("discovery_good", "1 when what discovery said last is in use, else 0.")
        good.add_metric((), metrics.discovery_good)
        yield good
        connections = gauge("client_connections", "Open client connections.")
        connections.add_metric((), metrics.connections)
        yield connections
        failures = counter("task_failures", "Tasks that failed by a defect, by name.", "task")
        for name, count in metrics.task_failures.items():
            failures.add_metric((name,), count)
        yield failures
        bodies = gauge("body_bytes", "Memory given to the bodies of requests.")
        bodies.add_metric((), metrics.body_bytes())
        yield bodies
        dropped = counter("access_log_dropped", "Access log lines dropped: it is read too slowly.")
        dropped.add_metric((), metrics.dropped_log_lines)
        yield dropped
        spans = counter("spans_dropped", "Spans dropped: the collector does not take them.")
        spans.add_metric((), metrics.dropped_spans)
        yield spans

    def _models(self) -> Iterator[Metric]:
        requests = counter(
            "requests", "Requests answered; code 499: the client left first.", "model", "code"
        )
        retries = counter(
            "retries", "Requests sent to another replica, by reason.", "model", "reason"
        )
        broken = counter(
            "broken_answers", "Answers that a replica cut after their first byte.", "model"
        )
        disconnects = counter(
            "client_disconnects", "Clients that left before their answer was complete.", "model"
        )
        duration = _histogram(
            "request_duration_seconds", "From a whole request to the end of its answer."
        )
        first_byte = _histogram(
            "time_to_first_byte_seconds", "From a whole request to the first byte of its answer."
        )
        for name, model in self._metrics.models.items():
            for code, count in model.codes.items():
                requests.add_metric((name, str(code)), count)
            for reason, count in model.retries.items():
                retries.add_metric((name, reason), count)
            broken.add_metric((name,), model.broken)
            disconnects.add_metric((name,), model.disconnects)
            duration.add_metric((name,), model.duration.buckets(), model.duration.total)
            first_byte.add_metric((name,), model.first_byte.buckets(), model.first_byte.total)
        yield from (requests, retries, broken, disconnects, duration, first_byte)

    def _failover(self) -> Iterator[Metric]:
        moves = counter(
            "stream_migrations",
            "Broken streams by what became of them: moved, completed, or why neither.",
            *("model", "outcome"),
        )
        hedges = counter(
            "hedges", "Second requests sent for late answers, and those that won.", *_BY_RESULT
        )
        poison = counter(
            "poison_requests",
            "Requests in flight at two engine deaths, and their like.",
            *_BY_RESULT,
        )
        deadlines = counter("deadlines_exceeded", "Requests not answered in their time.", "model")
        for name, model in self._metrics.models.items():
            for outcome, count in model.migrations.items():
                moves.add_metric((name, outcome), count)
            for result, count in model.hedges.items():
                hedges.add_metric((name, result), count)
            for result, count in model.poison.items():
                poison.add_metric((name, result), count)
            deadlines.add_metric((name,), model.deadlines)
        yield from (moves, hedges, poison, deadlines)
        kept = gauge("stream_transcript_bytes", "Memory given to the transcripts of streams.")
        kept.add_metric((), self._metrics.transcript_bytes())
        yield kept


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """An empty family; PREFIX goes before its name."""
    return CounterMetricFamily(PREFIX + name, text, labels=labels)


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """An empty family; PREFIX goes before its name."""
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)


def _histogram(name: str, text: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(PREFIX + name, text, labels=("model",))
