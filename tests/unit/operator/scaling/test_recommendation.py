from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource.autoscaling_spec import Autoscaling, ScalingTargets
from kvasir_operator.scaling.load import Load
from kvasir_operator.scaling.recommendation import (
    Replicas,
    pressure_of,
    recommend,
    targets_of,
)


def targets(**given: Any) -> ScalingTargets:
    return ScalingTargets.model_validate(given)


@pytest.mark.parametrize(
    ("concurrency", "current", "wanted"),
    [
        (0, 2, 0),
        (1, 0, 1),
        (8, 1, 1),
        (8.7, 1, 1),  # within a tenth of the target
        (8.9, 1, 2),
        (15, 2, 2),
        (14, 2, 2),
        (7, 2, 1),
        (80, 2, 10),
    ],
)
def test_an_amount_is_shared(concurrency: float, current: int, wanted: int) -> None:
    load = Load(concurrency=concurrency)
    found = recommend(targets(concurrency=8), load, Replicas(current, current), None)
    assert found.replicas == wanted
    assert f"concurrency is {concurrency:g}, 8 for each replica" in found.why


def test_the_target_that_asks_for_most_counts() -> None:
    load = Load(concurrency=10, queue=9, in_flight_tokens=50, kv_usage=0.9)
    given = targets(concurrency=10, queue=3, inFlightTokens=100, kvUsage=0.6)
    found = recommend(given, load, Replicas(2, 2), None)
    assert found == (3, "queue is 9, 3 for each replica")
    found = recommend(given, Load(kv_usage=0.9), Replicas(2, 2), None)
    assert found == (3, "KV usage is 90% of 2, 60% each")


@pytest.mark.parametrize(
    ("seen", "given", "pressure"),
    [
        (Load(ttft=1.0, itl=0.01), {"ttftSeconds": 4, "itlSeconds": 0.1}, 0.25),
        (Load(ttft=1.0, itl=0.08), {"ttftSeconds": 4, "itlSeconds": 0.1}, 0.8),
        (Load(ttft=100.0), {"ttftSeconds": 4}, 2.0),
        (Load(), {"ttftSeconds": 4}, 0.0),
        (Load(ttft=1.0), {"queue": 4}, None),
    ],
)
def test_pressure_is_the_worst_latency(
    seen: Load, given: dict[str, Any], pressure: float | None
) -> None:
    found = pressure_of(targets(**given), seen)
    assert found == (pressure if pressure is None else pytest.approx(pressure))


@pytest.mark.parametrize(
    ("pressure", "replicas", "wanted"),
    [
        (0.5, Replicas(2, 2), 2),
        (0.55, Replicas(2, 2), 2),
        (0.6, Replicas(2, 2), 3),
        (1.1, Replicas(2, 2), 4),
        # Two that start will take their half
        (1.1, Replicas(4, 2), 4),
        (0.39, Replicas(4, 4), 3),
        (0.39, Replicas(4, 2), 3),
        # What starts does not make others go
        (0.5, Replicas(4, 2), 4),
    ],
)
def test_latency_has_its_own_law(pressure: float, replicas: Replicas, wanted: int) -> None:
    found = recommend(targets(ttftSeconds=1), Load(), replicas, pressure)
    assert found.replicas == wanted


@pytest.mark.parametrize("metric", ["concurrency", "queue", "in_flight_tokens"])
def test_metric_and_target_are_one_target(metric: str) -> None:
    given = {"maxReplicas": 4, "metric": metric, "target": 7}
    found = targets_of(Autoscaling.model_validate(given))
    assert found.model_dump(exclude_none=True) == {metric: 7}
    own = Autoscaling.model_validate({**given, "targets": {"kvUsage": 0.5}})
    assert targets_of(own) == targets(kvUsage=0.5)
