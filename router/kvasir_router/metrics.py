"""The router's Prometheus metrics, all prefixed `kvasir_router_`.

Labels are bounded: a model is one that discovery names (requests for others have an empty model),
and replicas are read from the fleet at each scrape, so that a series goes with its replica.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.replica import Health

PREFIX = "kvasir_router_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
)


class ModelMetrics:
    """The children of one model's label, looked up once."""

    def __init__(self, metrics: "Metrics", model: str) -> None:
        self._requests = metrics.requests
        self._model = model
        self._codes: dict[int, Counter] = {}
        self.duration = metrics.duration.labels(model)
        self.first_byte = metrics.first_byte.labels(model)
        self.disconnects = metrics.disconnects.labels(model)
        self.broken = metrics.broken.labels(model)
        self._retries = metrics.retries

    def request(self, code: int) -> None:
        """Count an answered request. Codes come from replicas: three digits, so bounded."""
        child = self._codes.get(code)
        if child is None:
            child = self._codes[code] = self._requests.labels(self._model, str(code))
        child.inc()

    def retried(self, reason: str) -> None:
        self._retries.labels(self._model, reason).inc()


class Metrics:
    """One router's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests", "Requests answered; code 499: the client left first.", "model", "code"
        )
        self.duration = self._histogram(
            "request_duration_seconds", "From a whole request to the end of its answer."
        )
        self.first_byte = self._histogram(
            "time_to_first_byte_seconds", "From a whole request to the first byte of its answer."
        )
        self.retries = self._counter(
            "retries", "Requests sent to another replica, by reason.", "model", "reason"
        )
        self.broken = self._counter(
            "broken_answers", "Answers that a replica cut after their first byte.", "model"
        )
        self.disconnects = self._counter(
            "client_disconnects", "Clients that left before their answer was complete.", "model"
        )
        self.reloads = self._counter(
            "discovery_reloads", "Times the discovery source was read.", "result"
        )
        self.discovery_good = Gauge(
            PREFIX + "discovery_good",
            "1 when what discovery said last is in use, 0 when it was refused.",
            registry=self.registry,
        )
        self.connections = Gauge(
            PREFIX + "client_connections", "Open client connections.", registry=self.registry
        )
        self.dropped_log_lines = Counter(
            PREFIX + "access_log_dropped",
            "Access log lines dropped because the log is not read fast enough.",
            registry=self.registry,
        )
        self._models: dict[str, ModelMetrics] = {}

    def model(self, name: str) -> ModelMetrics:
        """For a model that discovery names, or "" for requests that reach none."""
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelMetrics(self, name)
        return found

    def keep_models(self, names: set[str]) -> None:
        """Drop the series of models that are gone."""
        for name in self._models.keys() - names - {""}:
            del self._models[name]
            for family in (
                self.requests,
                self.duration,
                self.first_byte,
                self.retries,
                self.broken,
                self.disconnects,
            ):
                family.remove_by_labels({"model": name})

    def discovery_reported(self, good: bool) -> None:
        self.reloads.labels("ok" if good else "refused").inc()
        self.discovery_good.set(good)

    def add_fleet(self, fleet: Fleet) -> None:
        self.registry.register(_FleetCollector(fleet))

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(
            PREFIX + name, help_text, ("model",), buckets=_SECONDS, registry=self.registry
        )


class _FleetCollector(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        labels = ("model", "replica")
        ready = GaugeMetricFamily(
            PREFIX + "replica_ready", "1 when the replica gets requests.", labels=labels
        )
        in_flight = GaugeMetricFamily(
            PREFIX + "replica_in_flight", "Requests in flight to the replica.", labels=labels
        )
        served = CounterMetricFamily(
            PREFIX + "replica_requests", "Requests sent to the replica.", labels=labels
        )
        failures = CounterMetricFamily(
            PREFIX + "replica_failures",
            "Requests that failed at the replica, by reason.",
            labels=(*labels, "reason"),
        )
        for model, replica in self._fleet.replicas():
            key = (model.name, replica.id)
            is_ready = replica.health is Health.READY and not replica.draining
            ready.add_metric(key, float(is_ready))
            in_flight.add_metric(key, replica.in_flight)
            served.add_metric(key, replica.served)
            for reason, count in replica.failures.items():
                failures.add_metric((*key, reason), count)
        yield from (ready, in_flight, served, failures)
