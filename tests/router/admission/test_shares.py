"""Who holds more than its share."""

import pytest

from kvasir_router.admission.shares import Shares


@pytest.fixture
def shares() -> Shares:
    shares = Shares()
    shares.came("a", 1.0, 100.0)
    shares.came("b", 3.0, 100.0)
    return shares


def test_a_share_is_by_weight(shares) -> None:
    for tenant in "abbb":
        shares.started(tenant)
    assert not shares.over("a", 1.0)
    assert not shares.over("b", 3.0)
    shares.started("a")
    assert shares.over("a", 1.0)
    assert not shares.over("b", 3.0)
    shares.ended("a")
    assert not shares.over("a", 1.0)


def test_alone_nobody_is_over() -> None:
    shares = Shares()
    shares.came("a", 1.0, 0.0)
    shares.started("a")
    assert not shares.over("a", 1.0)


def test_who_has_not_come_for_long_and_has_nothing_running_does_not_count(shares) -> None:
    shares.started("a")
    shares.came("a", 1.0, 109.0)
    assert shares.over("a", 1.0)
    shares.came("a", 1.0, 111.0)
    assert not shares.over("a", 1.0)


def test_what_runs_for_long_still_counts(shares) -> None:
    shares.started("b")
    shares.started("a")
    shares.started("a")
    shares.came("a", 1.0, 200.0)
    assert shares.over("a", 1.0)
