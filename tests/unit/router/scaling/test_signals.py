"""What a model reports of itself."""

import json

import pytest

from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.options.slo import Slo
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.scaling.signals import Signals, external_metrics
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.wire.usage import Usage


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def signals() -> Signals:
    return Signals(Slo(ttft=1.0, itl=0.05), {"special": Slo(9.0, 9.0)}, Clock())


@pytest.fixture
async def model() -> Model:
    """Two ready replicas."""
    model = Model(ModelSpec("m"), RoundRobin(), 0)
    for number in range(2):
        pool = ConnectionPool("127.0.0.1", 1 + number, connect_timeout=1, idle_timeout=1)
        spec = ReplicaSpec(f"r{number}", "127.0.0.1", 1 + number)
        replica = Replica(spec, pool, 10, model.refresh)
        replica.health = Health.READY
        model.replicas[spec.id, spec.host, spec.port] = replica
    model.refresh()
    return model


def test_concurrency_queue_tokens_and_kv(signals, model) -> None:
    one, two = model.replicas.values()
    for _ in range(3):
        one.acquire()
    one.load.give(700)
    one.load.reported(LoadReport(running=2, waiting=1, inflight_tokens=0, kv_usage=0.2, at=0.0))
    two.load.reported(LoadReport(running=0, waiting=4, inflight_tokens=900, kv_usage=0.6, at=0.0))
    report = signals.report(model, 5, 50, signals.model("m"))
    assert report["replicas"] == report["ready_replicas"] == 2
    assert report["concurrency"] == 8
    assert report["queue"] == 10
    assert report["held"] == 5
    assert report["in_flight_tokens"] == 700 + 900 + 50
    assert report["kv_usage"] == pytest.approx(0.4)


def test_a_model_with_no_replica_that_holds_requests_has_a_queue(signals) -> None:
    report = signals.report(Model(ModelSpec("m"), RoundRobin(), 0), 3, 30, signals.model("m"))
    assert (report["replicas"], report["queue"], report["concurrency"]) == (0, 3, 3)


def test_a_replica_whose_load_is_unknown_counts_by_what_it_was_given(signals, model) -> None:
    one, _ = model.replicas.values()
    one.acquire()
    report = signals.report(model, 0, 0, signals.model("m"))
    assert (report["concurrency"], report["queue"], report["kv_usage"]) == (1, 0, 0.0)


def test_latencies_of_streams(signals, model) -> None:
    record = signals.model("m")
    for _ in range(10):
        record.ended(200, 0.5, 0.5 + 0.02 * 99, Usage(10, 100), streamed=True)
    report = signals.report(model, 0, 0, signals.model("m"))
    assert report["ttft_seconds"]["p50"] == pytest.approx(0.5, rel=0.05)
    assert report["itl_seconds"]["p99"] == pytest.approx(0.02, rel=0.05)
    assert report["slo"]["ratio"] == 1.0


def test_unary_answers_have_no_first_token(signals, model) -> None:
    signals.model("m").ended(200, 5.0, 5.0, Usage(10, 100), streamed=False)
    report = signals.report(model, 0, 0, signals.model("m"))
    assert report["ttft_seconds"]["p50"] is report["itl_seconds"]["p50"] is None
    assert (report["requests"], report["slo"]["ratio"]) == (1, 1.0)


def test_one_token_has_no_distance_and_unknown_usage_none_either(signals, model) -> None:
    record = signals.model("m")
    record.ended(200, 0.5, 0.5, Usage(10, 1), streamed=True)
    record.ended(200, 0.5, 9.5, None, streamed=True)
    assert signals.report(model, 0, 0, signals.model("m"))["itl_seconds"]["p50"] is None


def test_the_ratio_of_requests_that_met_all_targets(signals, model) -> None:
    record = signals.model("m")
    record.ended(200, 0.5, 1.0, Usage(10, 100), streamed=True)
    record.ended(200, 1.5, 2.0, Usage(10, 100), streamed=True)  # late
    record.ended(200, 0.5, 90.0, Usage(10, 100), streamed=True)  # slow
    record.ended(503, 0.0, 0.1, None, streamed=True)
    record.ended(429, 0.0, 0.1, None, streamed=False)
    for status in (400, 404, 499):
        record.ended(status, 0.0, 9.0, None, streamed=True)
    slo = signals.report(model, 0, 0, signals.model("m"))["slo"]
    assert slo["ratio"] == pytest.approx(1 / 5)
    assert slo["ttft_ratio"] == pytest.approx(2 / 3)
    assert slo["itl_ratio"] == pytest.approx(2 / 3)


def test_targets_are_a_models_own_or_the_routers(signals) -> None:
    assert signals.model("m").slo == Slo(1.0, 0.05)
    assert signals.model("special").slo == Slo(9.0, 9.0)


def test_averages_are_over_a_minute_of_samples(signals, model) -> None:
    for waiting in [100] * 40 + [0] * 30 + [2] * 30:
        signals.sample(model, waiting, 0)
    assert signals.report(model, 0, 0, signals.model("m"))["average"]["queue"] == 1.0


def test_a_model_that_is_gone_is_forgotten(signals) -> None:
    record = signals.model("m")
    signals.keep_models({"n"})
    assert signals.model("m") is not record


def test_external_metrics_are_quantities(signals, model) -> None:
    record = signals.model("m")
    record.ended(200, 0.5, 1.0, Usage(10, 3), streamed=True)
    report = signals.report(model, 7, 0, signals.model("m"))
    made = json.loads(json.dumps(external_metrics(report, "2026-01-01T00:00:00Z")))
    assert made["kind"] == "ExternalMetricValueList"
    values = {item["metricName"]: item["value"] for item in made["items"]}
    assert values["kvasir_queue"] == "7"
    assert values["kvasir_slo_ratio"] == "0"
    assert 470 <= int(values["kvasir_ttft_seconds_p50"].removesuffix("m")) <= 530
    assert all(item["metricLabels"] == {"model": "m"} for item in made["items"])
