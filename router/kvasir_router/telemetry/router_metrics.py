"""The router's Prometheus metrics, all prefixed `kvasir_router_`.

What a request touches are plain numbers (a prometheus_client child costs several times as much);
functions turn them into metric families at each scrape. Labels are bounded: a model is one
that discovery names (requests for others have an empty model), and a series goes with its model or
replica.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kvasir import __version__
from kvasir_router import compiled
from kvasir_router.telemetry.model_metrics import Distribution, ModelMetrics

PREFIX = "kvasir_router_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Numbers = float | Mapping[Any, Any]
"""A family's one number, or its numbers by the value of a label or, in a tuple, of several; what
they are by may be nested, as `{model: {code: number}}`."""

_MODEL_COUNTERS = (
    ("requests", "Requests answered; code 499: the client left first.", "codes", "code"),
    ("retries", "Requests sent to another replica, by reason.", "retries", "reason"),
    ("broken_answers", "Answers that a replica cut after their first byte.", "broken"),
    ("client_disconnects", "Clients that left before their answer was complete.", "disconnects"),
    (
        "stream_migrations",
        "Broken streams by what became of them: moved, completed, or why neither.",
        *("migrations", "outcome"),
    ),
    (
        "hedges",
        "Second requests sent for late answers, and those that won.",
        *("hedges", "result"),
    ),
    (
        "poison_requests",
        "Requests in flight at two engine deaths, and their like.",
        *("poison", "result"),
    ),
    (
        "fallbacks",
        "Requests for the model that another one was asked for, by that one and the reason.",
        *("fallbacks", "fallback", "reason"),
    ),
    ("deadlines_exceeded", "Requests not answered in their time.", "deadlines"),
)
"""Name, text, field of ModelMetrics, and the label that its counts are by."""
_MODEL_HISTOGRAMS = (
    (
        "request_duration_seconds",
        "From a whole request to the end of its answer.",
        "duration",
    ),
    (
        "time_to_first_byte_seconds",
        "From a whole request to the first byte of its answer.",
        "first_byte",
    ),
)


class Metrics(Collector):
    """Metrics of one router."""

    def __init__(self) -> None:
        self.models: dict[str, ModelMetrics] = {}
        self.connections: Callable[[], int] = lambda: 0
        self.refused_connections = 0
        self.proxy_headers_refused: Counter[str] = Counter()
        """Connections and requests of trusted proxies closed for what they say of the client."""
        self.dropped_log_lines = 0
        self.dropped_audit_lines = 0
        self.dropped_spans = 0
        self.discovery_reads: Counter[str] = Counter()
        self.discovery_good = False
        self.stale: dict[str, bool] = {}
        """By file: True while an older content is in use, because the present one is not good."""
        self.task_failures: Counter[str] = Counter()
        self.defect: Callable[[str, BaseException], None] = lambda name, error: None
        """Told of a source of families that raises; the others are in the page all the same."""
        self.body_bytes: Callable[[], int] = lambda: 0
        self.transcript_bytes: Callable[[], int] = lambda: 0
        self._sources: list[Callable[[], Iterable[Metric]]] = [partial(_router_families, self)]

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
        self.file_reported("discovery", good)

    def file_reported(self, name: str, good: bool) -> None:
        self.stale[name] = not good

    def spans_were_dropped(self, count: int) -> None:
        self.dropped_spans += count

    def log_line_dropped(self) -> None:
        self.dropped_log_lines += 1

    def audit_line_dropped(self) -> None:
        self.dropped_audit_lines += 1

    def register(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Add the families that `source` returns, at each scrape."""
        self._sources.append(source)

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        for source in self._sources:
            try:
                yield from source()
            except Exception as error:
                self.defect("metrics", error)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self)


def _router_families(metrics: Metrics) -> Iterator[Metric]:
    build = (__version__, str(compiled.in_use()).lower())
    text = "1; what runs, and in which form."
    yield gauge("build_info", text, {build: 1}, "version", "compiled")
    for name, text, field, *labels in _MODEL_COUNTERS:
        counts = {model: getattr(each, field) for model, each in metrics.models.items()}
        yield counter(name, text, counts, "model", *labels)
    for name, text, field in _MODEL_HISTOGRAMS:
        family = HistogramMetricFamily(PREFIX + name, text, labels=("model",))
        for model, each in metrics.models.items():
            seconds: Distribution = getattr(each, field)
            family.add_metric((model,), seconds.buckets(), seconds.total)
        yield family
    text = "Memory given to the transcripts of streams."
    yield gauge("stream_transcript_bytes", text, metrics.transcript_bytes())
    text = "Times discovery was read, by result."
    yield counter("discovery_reads", text, metrics.discovery_reads, "result")
    text = "1 when what discovery said last is in use, else 0."
    yield gauge("discovery_good", text, metrics.discovery_good)
    text = "Processes that use the last good content of a file, since that of now is not good."
    yield gauge("stale_files", text, metrics.stale, "file")
    text = "Open client connections, TLS handshakes included."
    yield gauge("client_connections", text, metrics.connections())
    text = "Client connections refused because there were too many."
    yield counter("connections_refused", text, metrics.refused_connections)
    text = "Connections closed for what a proxy says of their client, by reason."
    yield counter("proxy_headers_refused", text, metrics.proxy_headers_refused, "reason")
    text = "Tasks that failed by a defect, by name."
    yield counter("task_failures", text, metrics.task_failures, "task")
    yield gauge("body_bytes", "Memory given to the bodies of requests.", metrics.body_bytes())
    text = "Access log lines dropped: it is read too slowly."
    yield counter("access_log_dropped", text, metrics.dropped_log_lines)
    text = "Audit log lines dropped: it is read too slowly."
    yield counter("audit_log_dropped", text, metrics.dropped_audit_lines)
    text = "Spans dropped: the collector does not take them."
    yield counter("spans_dropped", text, metrics.dropped_spans)


def counter(name: str, text: str, numbers: Numbers, *labels: str) -> Metric:
    """Return a family of these numbers; PREFIX goes before its name."""
    return _filled(CounterMetricFamily(PREFIX + name, text, labels=labels), numbers)


def gauge(name: str, text: str, numbers: Numbers, *labels: str) -> Metric:
    """Return a family of these numbers; PREFIX goes before its name."""
    return _filled(GaugeMetricFamily(PREFIX + name, text, labels=labels), numbers)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, numbers: Numbers, labels: tuple[Any, ...] = ()
) -> Metric:
    if isinstance(numbers, Mapping):
        for label, inner in numbers.items():
            _filled(family, inner, (*labels, *(label if isinstance(label, tuple) else (label,))))
    else:
        family.add_metric([str(label) for label in labels], numbers)
    return family
