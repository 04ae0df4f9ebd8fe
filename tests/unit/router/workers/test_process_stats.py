"""Several processes' numbers as one."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from kvasir_router.options.slo import Slo
from kvasir_router.scaling.signals import Signals
from kvasir_router.telemetry.router_metrics import PREFIX
from kvasir_router.workers.process_stats import (
    ProcessStats,
    Totals,
    by_labels,
    families,
    text_of,
    windows,
)


def process(requests: int, waiting: int, ready: int = 1, model: str = "m") -> list:
    counted = CounterMetricFamily(PREFIX + "requests", "Requests.", labels=("model", "code"))
    counted.add_metric((model, "200"), requests)
    waits = GaugeMetricFamily(PREFIX + "waiting_requests", "Waiting.", labels=("model",))
    waits.add_metric((model,), waiting)
    is_ready = GaugeMetricFamily(PREFIX + "replica_ready", "Ready.", labels=("model",))
    is_ready.add_metric((model,), ready)
    return [counted, waits, is_ready]


def told(requests: int, waiting: int, ready: int = 1, model: str = "m") -> ProcessStats:
    return ProcessStats(families(process(requests, waiting, ready, model)), {})


def value(totals: Totals, own: list, sample: str) -> float | None:
    found = by_labels(totals.families(own), sample)
    values = [value for labels, value in found.items() if ("model", "m") in labels]
    return values[0] if values else None


def test_counters_are_summed_and_outlive_their_process() -> None:
    totals = Totals()
    totals.told(0, told(10, 2))
    totals.told(1, told(5, 1))
    assert value(totals, [], "requests_total") == 15
    assert value(totals, [], "waiting_requests") == 3
    totals.ended(0, {"m"}, set())
    totals.told(2, told(1, 0))
    assert value(totals, [], "requests_total") == 16
    assert value(totals, [], "waiting_requests") == 1


def test_sums_that_are_shown_as_ones_own_are_not_counted_again() -> None:
    totals = Totals()
    own = process(7, 9, ready=0)
    assert value(totals, own, "requests_total") == 7
    totals.told(0, told(10, 2, ready=1))
    assert value(totals, own, "requests_total") == 10
    assert value(totals, own, "waiting_requests") == 2
    assert value(totals, own, "replica_ready") == 0, "what is seen here is true"


def test_series_of_models_that_are_gone_are_dropped() -> None:
    totals = Totals()
    totals.told(0, told(10, 0, model="old"))
    totals.told(1, told(10, 0))
    for column in (0, 1):
        totals.ended(column, {"m"}, set())
    text = text_of(totals.families([])).decode()
    assert "old" not in text
    assert 'kvasir_router_requests_total{code="200",model="m"} 10.0' in text


def test_windows_of_all_are_one() -> None:
    def signals() -> Signals:
        return Signals(Slo(ttft=1.0), {}, clock=lambda: 1000.0)

    fast, slow, both = signals(), signals(), signals()
    for _ in range(10):
        fast.model("m").ended(200, 0.1, 0.2, None, True)
    for _ in range(30):
        slow.model("m").ended(200, 5.0, 6.0, None, True)
    totals = Totals()
    totals.told(0, ProcessStats([], windows(fast, ["m"])))
    totals.told(1, ProcessStats([], windows(slow, ["m"])))
    for _ in range(2):  # however often it is asked for
        totals.fill(both, ["m"])
    model = both.model("m")
    assert model.ttft.count == 40
    assert model.ttft.met == 0.25
    assert 4.5 < (model.ttft.percentile(0.5) or 0) < 5.5
    totals.ended(1, {"m"}, set())
    totals.fill(both, ["m"])
    assert both.model("m").ttft.count == 40
