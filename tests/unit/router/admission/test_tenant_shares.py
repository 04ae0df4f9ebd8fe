"""Who has got more than its share."""

import pytest

from kvasir_router.admission.tenant_shares import TenantShares


@pytest.fixture
def shares() -> TenantShares:
    shares = TenantShares()
    shares.came("a", 1.0, 100.0)
    shares.came("b", 3.0, 100.0)
    return shares


def run(shares: TenantShares, tenant: str, count: int, now: float = 100.0) -> None:
    for _ in range(count):
        shares.started(tenant, 10, now)


def test_a_share_is_by_weight(shares) -> None:
    run(shares, "a", 4)
    run(shares, "b", 10)
    assert shares.over("a", 1.0, 12)
    assert not shares.over("b", 3.0, 12)
    run(shares, "b", 5)
    assert not shares.over("a", 1.0, 12)
    assert shares.over("b", 3.0, 12)


def test_with_little_running_nobody_is_over(shares) -> None:
    run(shares, "a", 3)
    assert not shares.over("a", 1.0, 12)
    run(shares, "a", 1)
    assert shares.over("a", 1.0, 12)
    shares.ended("a")
    assert not shares.over("a", 1.0, 12)


def test_a_burst_of_who_had_little_is_no_greed(shares) -> None:
    run(shares, "b", 100)
    for _ in range(95):
        shares.ended("b")
    run(shares, "a", 8)
    assert not shares.over("a", 1.0, 12)


def test_what_found_no_replica_does_not_count(shares) -> None:
    run(shares, "b", 4)
    run(shares, "a", 4)
    assert shares.over("a", 1.0, 12)
    for _ in range(4):
        shares.take_back("a", 10, 100.0)
    run(shares, "a", 1)
    assert not shares.over("a", 1.0, 1)


def test_alone_nobody_is_over() -> None:
    shares = TenantShares()
    shares.came("a", 1.0, 0.0)
    run(shares, "a", 20, 0.0)
    assert not shares.over("a", 1.0, 12)


def test_who_has_not_come_for_long_does_not_count(shares) -> None:
    run(shares, "a", 20)
    shares.came("a", 1.0, 109.0)
    assert shares.over("a", 1.0, 12)
    shares.came("a", 1.0, 111.0)
    assert not shares.over("a", 1.0, 12)


def test_the_past_fades(shares) -> None:
    run(shares, "a", 20)
    shares.started("b", 190, 100.0)
    assert shares.over("a", 1.0, 12)
    shares.started("b", 190, 250.0)
    assert not shares.over("a", 1.0, 12)


def test_numbers_stay_finite_for_days(shares) -> None:
    for hour in range(24 * 30):
        now = 100.0 + 3600 * hour
        shares.came("a", 1.0, now)
        shares.came("b", 1.0, now)
        run(shares, "a", 3, now)
        run(shares, "b", 1, now)
        assert shares.over("a", 1.0, 2)
        assert not shares.over("b", 1.0, 0)
