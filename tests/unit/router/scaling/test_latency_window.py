"""Rolling percentiles."""

from random import Random

import pytest

from kvasir_router.scaling.latency_window import LatencyWindow


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nothing_is_known_of_nothing(clock) -> None:
    window = LatencyWindow(clock)
    assert (window.count, window.met, window.percentile(0.5)) == (0, None, None)


@pytest.mark.parametrize("part", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_percentiles_are_within_four_percent(clock, part) -> None:
    window = LatencyWindow(clock)
    random = Random(7)
    values = sorted(random.lognormvariate(-2, 1.5) for _ in range(5000))
    for value in values:
        window.observe(value)
    exact = values[max(int(part * 5000) - 1, 0)]
    assert window.percentile(part) == pytest.approx(exact, rel=0.045)


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 0.0), (1e9, 900)])
def test_what_is_out_of_range_is_at_its_end(clock, seconds, least) -> None:
    window = LatencyWindow(clock)
    window.observe(seconds)
    assert least <= window.percentile(0.5) < 1100


def test_a_minute_later_all_is_forgotten(clock) -> None:
    window = LatencyWindow(clock)
    window.observe(1.0)
    clock.now += 30
    window.observe(9.0)
    clock.now += 24
    assert window.count == 2
    clock.now += 7
    assert window.count == 1
    assert window.percentile(0.5) == pytest.approx(9.0, rel=0.05)
    clock.now += 60
    assert window.count == 0


def test_the_part_that_met_its_target(clock) -> None:
    window = LatencyWindow(clock)
    for met in (True, True, True, False):
        window.observe(0.1, met)
    assert window.met == 0.75


def test_a_pause_longer_than_the_window_leaves_nothing_behind(clock) -> None:
    window = LatencyWindow(clock)
    for _ in range(20):
        window.observe(1.0)
        clock.now += 5
    clock.now += 3600
    window.observe(2.0)
    assert window.count == 1
