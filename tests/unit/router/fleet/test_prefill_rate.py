"""Time that a replica's prompts may take."""

import pytest

from kvasir_router.fleet.prefill_rate import PrefillRate


def test_a_replica_that_was_not_measured_has_much_time() -> None:
    assert PrefillRate().allowance(1_000) == 20.0


def test_the_allowance_follows_the_measured_speed() -> None:
    rate = PrefillRate()
    rate.observed(10_000, 1.0)
    assert rate.allowance(5_000) == pytest.approx(2.0)
    for _ in range(50):
        rate.observed(1_000, 1.0)
    assert rate.allowance(5_000) == pytest.approx(20.0, rel=0.01)


def test_short_prompts_measure_nothing() -> None:
    rate = PrefillRate()
    rate.observed(100, 0.000_001)
    assert rate.allowance(1_000) == PrefillRate().allowance(1_000)
