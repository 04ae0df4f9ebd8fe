"""Tests of differences, against what others compute and against their own meaning."""

from __future__ import annotations

import random
from collections import Counter
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_operator.plan.canary.significance import (
    fisher_exact,
    mann_whitney,
    quantile,
    quantile_test,
    shifted,
)


@given(
    st.integers(1, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.integers(1, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
)
def test_fisher_is_the_tail_of_the_hypergeometric_distribution(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    hits, everything = one[0] + other[0], one[1] + other[1]
    tail = sum(
        comb(hits, k) * comb(everything - hits, one[1] - k)
        for k in range(one[0], min(hits, one[1]) + 1)
    )
    exact = tail / comb(everything, one[1])
    assert fisher_exact(*one, *other) == pytest.approx(exact, rel=1e-9)


def test_fisher_of_the_lady_tasting_tea() -> None:
    """R. A. Fisher, The Design of Experiments: 3 of 4 right has a chance of 17/70."""
    assert fisher_exact(3, 4, 1, 4) == pytest.approx(17 / 70)


def test_fisher_of_many_is_fast_and_finite() -> None:
    assert 0 < fisher_exact(5_100, 50_000, 45_000, 450_000) < 1
    assert fisher_exact(0, 500, 0, 4500) == 1.0
    assert fisher_exact(500, 500, 0, 4500) < 1e-300


def test_mann_whitney_is_what_scipy_computes() -> None:
    """scipy.stats.mannwhitneyu(x, y, alternative="greater", method="asymptotic").pvalue."""
    x, y = [3, 4, 4, 5, 7, 8], [1, 2, 4, 4, 5, 6]
    assert mann_whitney(Counter(x), Counter(y)) == pytest.approx(0.16359343889515282)


def test_mann_whitney_of_equal_constants_tells_nothing() -> None:
    assert mann_whitney({7: 100}, {7: 900}) == 1.0
    assert mann_whitney({}, {7: 900}) == 1.0


def test_mann_whitney_sees_a_shift_and_no_shift() -> None:
    draw = random.Random(1)
    stable = Counter(round(draw.gauss(100, 8)) for _ in range(4500))
    same = Counter(round(draw.gauss(100, 8)) for _ in range(500))
    assert mann_whitney(same, stable) > 0.01
    assert mann_whitney(shifted(same, -3), stable) < 1e-6
    assert mann_whitney(shifted(same, 3), stable) > 0.999


def test_the_quantile_test_sees_a_tail_that_ranks_do_not() -> None:
    draw = random.Random(2)
    stable = Counter(round(draw.gauss(100, 8)) for _ in range(4500))
    tailed = Counter(
        round(draw.gauss(100, 8)) + (60 if draw.random() < 0.12 else 0) for _ in range(500)
    )
    assert quantile_test(tailed, stable, 0.95) < 1e-6
    assert quantile_test(tailed, stable, 0.5) > 1e-3
    assert mann_whitney(tailed, stable) > 1e-6


@given(st.dictionaries(st.integers(0, 300), st.integers(1, 50), min_size=1), st.floats(0.01, 1))
def test_a_quantile_has_its_part_at_or_below(sample: dict[int, int], part: float) -> None:
    place = quantile(sample, part)
    assert place is not None
    assert min(sample) - 1 <= place <= max(sample)
    whole = sum(sample.values())
    at_or_below = sum(count for each, count in sample.items() if each <= place + 1)
    assert at_or_below >= part * whole * (1 - 1e-9)


def test_nothing_has_no_quantile() -> None:
    assert quantile({}, 0.9) is None
    assert quantile_test({}, {}, 0.9) == 1.0
