"""The fleet of autoscaling's study, beside what can be computed by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_engine.sim.latency_model import SpeedProfile

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
PROFILE = SpeedProfile.load("h200-llama-3.1-8b-bf16")


@pytest.fixture
def study():
    """The modules of the study, which lie beside each other in benchmarks/."""
    import autoscaling
    import scaling_fleet
    import scaling_rivals

    return autoscaling, scaling_fleet, scaling_rivals


class Still:
    every = 1

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def decide(self, now, wanted, ready, load) -> int:
        return self._replicas


def test_a_steady_load_has_what_little_s_law_says(study) -> None:
    _, fleets, _ = study
    fleet = fleets.Fleet(PROFILE, 10, output=300.0, cold_start=60.0, seed=1, slo=fleets.Slo())
    day = [fleets.Second(50.0, 1000.0)] * 600
    outcome = fleets.play(fleet, day, Still(10))
    assert outcome.gpu_seconds == 6000
    assert outcome.requests == pytest.approx(30_000)
    assert outcome.missed == 0
    load = fleet.load()
    assert load.queue == 0
    assert load.requests == pytest.approx(3000, rel=0.01)
    assert load.itl is not None
    assert load.concurrency == pytest.approx(50 * 300 * load.itl, rel=0.02)


def test_what_does_not_fit_waits_in_line_and_is_late(study) -> None:
    _, fleets, _ = study
    fleet = fleets.Fleet(PROFILE, 1, output=300.0, cold_start=60.0, seed=1, slo=fleets.Slo())
    outcome = fleets.play(fleet, [fleets.Second(100.0, 1000.0)] * 120, Still(1))
    assert outcome.missed / outcome.requests > 0.5
    assert fleet.load().queue > 1000
    assert outcome.requests == pytest.approx(12_000)


def test_replicas_start_after_a_while_and_count_until_they_have_drained(study) -> None:
    _, fleets, _ = study
    fleet = fleets.Fleet(PROFILE, 2, output=300.0, cold_start=60.0, seed=1, slo=fleets.Slo())
    quiet = fleets.Second(10.0, 500.0)
    fleet.scale(0, 6)
    for now in range(30):
        fleet.second(now, quiet)
    assert (fleet.ready, fleet.wanted, fleet.outcome.gpu_seconds) == (2, 6, 180)
    fleet.scale(30, 4)  # first those that start
    assert (fleet.ready, fleet.wanted) == (2, 4)
    for now in range(30, 200):
        fleet.second(now, quiet)
    assert fleet.ready == 4
    before = fleet.outcome.gpu_seconds
    fleet.scale(200, 1)
    fleet.second(200, quiet)
    assert fleet.outcome.gpu_seconds == before + 4


@given(asked=st.lists(st.floats(0, 3000), min_size=1, max_size=60))
def test_an_hpa_keeps_to_its_bounds_and_its_speed(asked) -> None:
    from scaling_rivals import MAX_REPLICAS, MIN_REPLICAS, Hpa

    from kvasir_operator.scaling.load import Load

    hpa, wanted = Hpa("concurrency", 10), 50
    history = []
    for look, concurrency in enumerate(asked):
        found = hpa.decide(15.0 * look, wanted, wanted, Load(concurrency=concurrency))
        history.append(concurrency)
        assert MIN_REPLICAS <= found <= min(MAX_REPLICAS, max(wanted + 4, 2 * wanted))
        if found < wanted:
            assert found >= min(wanted, max(history[-20:]) / 10 * 0.89)
        wanted = found


def test_hours_at_a_share_are_those_of_the_best_target(study) -> None:
    script, *_ = study

    def point(target: float, hours: float, attained: float):
        return script.Point("bursty", 1, "x", target, hours, attained, 0.0, 0.0, 1)

    points = [point(20, 1000, 0.999), point(30, 800, 0.98), point(40, 900, 0.9)]
    assert script.hours_at(0.98, points) == 800
    assert script.hours_at(0.9895, points) == pytest.approx(900)
    assert script.hours_at(0.95, points) == 800
    assert script.hours_at(0.9999, points) is None
