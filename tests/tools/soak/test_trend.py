"""A leak is found under noise; noise, warm-up and what falls are none."""

from __future__ import annotations

import math
import random

import pytest
from soaking.trend import binned, fit, judge

MINUTE = 60.0
Values = list[tuple[float, float]]


def series(growth_per_hour: float, noise: float, minutes: int = 60, seed: int = 0) -> Values:
    """A sample each 5 s around a line, with a spike now and then."""
    draw = random.Random(seed)
    samples = []
    for second in range(0, minutes * 60, 5):
        value = 100 + growth_per_hour * second / 3600 + draw.gauss(0, noise)
        samples.append((float(second), value + (draw.random() < 0.02) * 50))
    return samples


def test_the_line_of_exact_values_is_exact() -> None:
    line = fit([(float(x), 3.0 + 0.5 * x) for x in range(20)])
    assert line.slope == pytest.approx(0.5)
    assert (line.low, line.high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert line.noise == pytest.approx(0.0)
    assert line.span == 19


def test_outliers_do_not_move_the_line() -> None:
    values = [(float(x), 2.0 * x) for x in range(30)]
    values[-1] = (29.0, 10_000.0)
    values[3] = (3.0, -10_000.0)
    assert fit(values).slope == pytest.approx(2.0, rel=0.01)


def test_the_interval_has_the_true_slope_in_it_about_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(200):
        draw = random.Random(seed)
        line = fit([(float(x), x + draw.gauss(0, 5)) for x in range(30)])
        inside += line.low <= 1.0 <= line.high
    assert 180 <= inside <= 200


def test_too_few_values_have_no_trend() -> None:
    with pytest.raises(ValueError, match="2 values"):
        fit([(0.0, 1.0), (1.0, 1.0)])
    assert judge(series(0, 1, minutes=11), 1.0) is None


def test_a_leak_is_found_and_noise_is_not() -> None:
    leak = judge(series(12.0, 1.0), 1.0)
    noise = judge(series(0.0, 1.0), 1.0)
    assert leak is not None
    assert noise is not None
    assert not leak.flat
    assert leak.low_per_hour > 0
    assert leak.growth == pytest.approx(12 * 0.5, rel=0.25)
    assert noise.flat


def test_one_descriptor_lost_every_few_minutes_is_found() -> None:
    steps = [(float(s), 40.0 + s // 300) for s in range(0, 3600, 5)]
    found = judge(steps, 1.0)
    assert found is not None
    assert not found.flat


def test_warm_up_is_no_leak() -> None:
    warming = [(float(s), 100 - 40 * math.exp(-s / 300)) for s in range(0, 3600, 5)]
    found = judge(warming, 1.0)
    assert found is not None
    assert found.flat
    assert found.first_half_per_hour > 10


def test_growth_below_the_smallest_that_counts_is_flat() -> None:
    found = judge(series(0.5, 0.0), 1.0)
    assert found is not None
    assert found.low_per_hour > 0
    assert found.flat


def test_what_falls_is_flat() -> None:
    found = judge(series(-30.0, 1.0), 1.0)
    assert found is not None
    assert found.flat
    assert found.high_per_hour < 0


def test_a_minute_becomes_its_median() -> None:
    assert binned([(0.0, 1.0), (10.0, 9.0), (20.0, 2.0), (61.0, 4.0)]) == [(10.0, 2.0), (61.0, 4.0)]
