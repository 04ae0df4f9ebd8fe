"""Signals for scaling a model: what it does now, and how well it did in the last minute."""

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from kvasir_router.fleet.model import Model
from kvasir_router.options.slo import Slo
from kvasir_router.scaling.latency_window import WINDOW_SECONDS, LatencyWindow, SlotState
from kvasir_router.wire.usage import Usage

SAMPLE_SECONDS = 1.0
_PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


class Sample(NamedTuple):
    """Sample of a model's load."""

    concurrency: int
    """Requests that a replica works on or that wait."""
    queue: int
    """Requests that wait: here for a replica, and in the replicas (there for all routers)."""
    in_flight_tokens: int
    """Prompt tokens still to be computed."""
    kv_usage: float
    """0 to 1, the mean over the replicas that report it."""


LatencyState = tuple[list[SlotState], list[SlotState], list[SlotState]]
"""Windows of first tokens, of times between tokens, and of requests."""


class Latencies:
    """A model's latencies of the last minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ttft = LatencyWindow(clock)
        self.itl = LatencyWindow(clock)
        self.requests = LatencyWindow(clock)
        """Durations, and whether all targets were met. A refusal or a fault meets none; what is the
        client's own doing (other 4xx, leaving) is not counted."""

    def state(self) -> LatencyState:
        """Return what was observed, for `add` by the same clock."""
        return self.ttft.state(), self.itl.state(), self.requests.state()

    def add(self, state: LatencyState) -> None:
        """Take over what another process has observed."""
        ttft, itl, requests = state
        self.ttft.add(ttft)
        self.itl.add(itl)
        self.requests.add(requests)


class ModelSignals(Latencies):
    """Latencies of one model, and samples of its load."""

    def __init__(self, slo: Slo, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.slo = slo
        self.samples: deque[Sample] = deque(maxlen=int(WINDOW_SECONDS / SAMPLE_SECONDS))

    def ended(
        self, status: int, first_byte: float, duration: float, usage: Usage | None, streamed: bool
    ) -> None:
        """A request was answered: seconds to its first byte (0 = there was none) and its end.

        For a stream of n tokens the inter-token latency is (end - first byte) / (n - 1); that of a
        unary answer is not seen from here, nor is its time to first token.
        """
        if 400 <= status < 500 and status != 429:
            return
        good = status < 400 and first_byte > 0
        if good and streamed:
            meets = first_byte <= self.slo.ttft
            self.ttft.observe(first_byte, meets)
            good = meets
            if usage is not None and usage.completion_tokens > 1:
                itl = (duration - first_byte) / (usage.completion_tokens - 1)
                meets = itl <= self.slo.itl
                self.itl.observe(itl, meets)
                good = good and meets
        self.requests.observe(duration, good)

    def average(self) -> dict[str, float]:
        """Return the mean of each field over the samples in the window."""
        count = len(self.samples)
        columns = zip(*self.samples, strict=True) if count else ((0,),) * len(Sample._fields)
        return {
            name: round(sum(values) / max(count, 1), 4)
            for name, values in zip(Sample._fields, columns, strict=True)
        }


class Signals:
    """All models' signals."""

    def __init__(
        self, slo: Slo, slo_by_model: Mapping[str, Slo], clock: Callable[[], float] = monotonic
    ) -> None:
        self._slo = slo
        self._slo_by_model = slo_by_model
        self._clock = clock
        self._models: dict[str, ModelSignals] = {}

    def model(self, name: str) -> ModelSignals:
        """Return the signals of a model that discovery names."""
        found = self._models.get(name)
        if found is None:
            slo = self._slo_by_model.get(name, self._slo)
            found = self._models[name] = ModelSignals(slo, self._clock)
        return found

    def keep_models(self, names: set[str]) -> None:
        """Forget models that are gone."""
        for name in self._models.keys() - names:
            del self._models[name]

    def sample(self, model: Model, waiting: int, waiting_tokens: int) -> Sample:
        """Look at a model; `waiting` requests are held in this router. Call once a second."""
        sample = look(model, waiting, waiting_tokens)
        self.model(model.name).samples.append(sample)
        return sample

    def report(
        self, model: Model, waiting: int, waiting_tokens: int, latencies: Latencies
    ) -> dict[str, Any]:
        """`/scaling/{model}`: numbers now, averages and percentiles over the last minute."""
        signals = self.model(model.name)
        return {
            "model": model.name,
            "window_seconds": WINDOW_SECONDS,
            "replicas": sum(not each.draining for each in model.replicas.values()),
            "ready_replicas": len(model.serving),
            **look(model, waiting, waiting_tokens)._asdict(),
            "held": waiting,
            "average": signals.average(),
            "requests": latencies.requests.count,
            "ttft_seconds": _percentiles(latencies.ttft),
            "itl_seconds": _percentiles(latencies.itl),
            "slo": {
                "ttft_seconds": signals.slo.ttft,
                "itl_seconds": signals.slo.itl,
                "ttft_ratio": latencies.ttft.met,
                "itl_ratio": latencies.itl.met,
                "ratio": latencies.requests.met,
            },
        }


def look(model: Model, waiting: int, waiting_tokens: int) -> Sample:
    """The model at this moment."""
    replicas = list(model.replicas.values())
    reports = [each.load.report for each in replicas if not each.load.stale]
    known = [report for report in reports if report is not None]
    return Sample(
        concurrency=waiting + sum(each.in_flight for each in replicas),
        queue=waiting + sum(report.waiting for report in known),
        in_flight_tokens=waiting_tokens + sum(each.load.prefill_tokens for each in replicas),
        kv_usage=round(sum(each.kv_usage for each in known) / len(known), 4) if known else 0.0,
    )


def external_metrics(report: Mapping[str, Any], timestamp: str) -> dict[str, Any]:
    """A report's numbers as Kubernetes' ExternalMetricValueList: https://github.com/kubernetes/
    metrics/blob/master/pkg/apis/external_metrics/v1beta1/types.go. Values are quantities: a number
    that is no whole one is given in thousandths."""
    numbers = dict(_numbers("kvasir", report))
    labels = {"model": report["model"]}
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {
                "metricName": name,
                "metricLabels": labels,
                "timestamp": timestamp,
                "value": str(int(value)) if value == int(value) else f"{round(value * 1000)}m",
            }
            for name, value in numbers.items()
        ],
    }


def _numbers(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _numbers(f"{prefix}_{name}", value)
        elif isinstance(value, (int, float)):
            found.append((f"{prefix}_{name}", value))
    return found


def _percentiles(window: LatencyWindow) -> dict[str, float | None]:
    return {
        name: None if (value := window.percentile(part)) is None else round(value, 6)
        for name, part in _PERCENTILES
    }
