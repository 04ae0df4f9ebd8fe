"""Who has got more than its share."""

import pytest

from kvasir_router.admission.shares import Shares


@pytest.fixture
def shares() -> Shares:
    shares = Shares()
    shares.came("a", 1.0, 100.0)
    shares.came("b", 3.0, 100.0)
    return shares


def test_a_share_is_by_weight(shares) -> None:
    shares.charge("a", 90, 100.0)
    shares.charge("b", 300, 100.0)
    assert not shares.over("a", 1.0)
    assert shares.over("b", 3.0)
    shares.charge("a", 20, 100.0)
    assert shares.over("a", 1.0)
    assert not shares.over("b", 3.0)


def test_what_is_taken_back_does_not_count(shares) -> None:
    shares.charge("b", 10, 100.0)
    shares.charge("a", 1000, 100.0)
    shares.charge("a", -1000, 100.0)
    assert not shares.over("a", 1.0)


def test_who_has_got_nothing_is_under_its_share(shares) -> None:
    shares.charge("b", 10, 100.0)
    assert not shares.over("a", 1.0)


def test_alone_nobody_is_over() -> None:
    shares = Shares()
    shares.came("a", 1.0, 0.0)
    shares.charge("a", 10, 0.0)
    assert not shares.over("a", 1.0)


def test_who_has_not_come_for_long_does_not_count(shares) -> None:
    shares.charge("a", 10, 100.0)
    shares.came("a", 1.0, 109.0)
    assert shares.over("a", 1.0)
    shares.came("a", 1.0, 111.0)
    assert not shares.over("a", 1.0)


def test_the_past_fades(shares) -> None:
    shares.charge("a", 1000, 100.0)
    shares.charge("b", 1000, 250.0)
    assert not shares.over("a", 1.0)


def test_numbers_stay_finite_for_days(shares) -> None:
    for hour in range(24 * 30):
        now = 100.0 + 3600 * hour
        shares.came("a", 1.0, now)
        shares.came("b", 1.0, now)
        shares.charge("a", 3, now)
        shares.charge("b", 1, now)
        assert shares.over("a", 1.0)
        assert not shares.over("b", 1.0)
