"""The time after which a unary request is hedged."""

from kvasir_router.fleet.hedge_delay import MIN_SAMPLES, HedgeDelay


def test_unknown_until_there_are_samples() -> None:
    delay = HedgeDelay()
    for _ in range(MIN_SAMPLES - 1):
        delay.answered(1.0)
    assert delay.seconds is None
    delay.answered(1.0)
    assert delay.seconds == 1.0


def test_it_is_the_95th_percentile_of_the_last_answers() -> None:
    delay = HedgeDelay()
    for _ in range(1000):
        delay.answered(99.0)
    for number in range(128):
        delay.answered(number / 10)
    assert delay.seconds == 12.1
