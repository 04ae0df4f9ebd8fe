"""Several processes' numbers as one."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from kvasir.wire.canary_samples import CanarySamples, RevisionSamples
from kvasir_router.options.slo import Slo
from kvasir_router.scaling.signals import ModelSignals
from kvasir_router.telemetry.metric_families import Family, by_labels, families_of, text_of
from kvasir_router.telemetry.router_metrics import PREFIX
from kvasir_router.workers.process_stats import ProcessStats, Totals


def process(requests: int, waiting: int, ready: int = 1, model: str = "m") -> list[Family]:
    counted = CounterMetricFamily(PREFIX + "requests", "Requests.", labels=("model", "code"))
    counted.add_metric((model, "200"), requests)
    waits = GaugeMetricFamily(PREFIX + "waiting_requests", "Waiting.", labels=("model",))
    waits.add_metric((model,), waiting)
    is_ready = GaugeMetricFamily(PREFIX + "replica_ready", "Ready.", labels=("model",))
    is_ready.add_metric((model,), ready)
    return families_of([counted, waits, is_ready])


def told(requests: int, waiting: int, ready: int = 1, model: str = "m") -> ProcessStats:
    return ProcessStats(process(requests, waiting, ready, model), {})


def value(totals: Totals, own: list[Family], sample: str) -> float | None:
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


def test_the_process_that_asks_counts_only_what_no_other_does() -> None:
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


def test_latencies_of_all_are_one() -> None:
    def signals() -> ModelSignals:
        return ModelSignals(Slo(ttft=1.0), clock=lambda: 1000.0)

    fast, slow = signals(), signals()
    for _ in range(10):
        fast.ended(200, 0.1, 0.2, None, True)
    for _ in range(30):
        slow.ended(200, 5.0, 6.0, None, True)
    totals = Totals(clock=lambda: 1000.0)
    totals.told(0, ProcessStats([], {"m": fast.state()}))
    totals.told(1, ProcessStats([], {"m": slow.state()}))
    for _ in range(2):  # however often it is asked for
        ttft = totals.latencies("m").ttft
        assert ttft.count == 40
        assert ttft.met == 0.25
        assert 4.5 < (ttft.percentile(0.5) or 0) < 5.5
    totals.ended(1, {"m"}, set())
    assert totals.latencies("m").ttft.count == 40


def test_samples_of_a_canary_are_those_of_its_split_in_all_processes() -> None:
    def counted(split: str, answers: int) -> ProcessStats:
        samples = CanarySamples(split, RevisionSamples(answers=answers), RevisionSamples(errors=1))
        return ProcessStats([], {}, {"m": samples.report()})

    totals = Totals()
    totals.told(0, counted("a", 3))
    totals.told(1, counted("a", 4))
    totals.told(2, counted("before", 9))
    totals.told(3, ProcessStats([], {}))
    found = totals.canary("m", "a")
    assert (found.canary.answers, found.stable.errors) == (7, 2)
    totals.ended(0, {"m"}, set())
    assert totals.canary("m", "a").canary.answers == 4
