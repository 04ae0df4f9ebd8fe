"""Who has got more than its share."""

import math

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


def test_a_tenant_counts_for_ten_seconds() -> None:
    for seconds, contended in ((10.0, True), (10.5, False)):
        shares = TenantShares()
        shares.came("a", 1.0, 100.0)
        shares.came("b", 1.0, 100.0)
        shares.came("a", 1.0, 100.0 + seconds)
        assert shares.contended is contended


def test_who_counts_is_looked_at_each_second_and_for_each_newcomer() -> None:
    shares = TenantShares()
    shares.came("a", 1.0, 100.0)
    shares.came("b", 1.0, 100.0)
    shares.came("b", 1.0, 109.5)
    shares.came("b", 1.0, 110.4)
    assert shares.contended, "looked at 0.9 s ago"
    shares.came("b", 1.0, 110.6)
    assert not shares.contended
    shares.came("c", 1.0, 110.7)
    assert shares.contended
    shares.came("b", 1.0, 120.75)
    assert not shares.contended


def test_after_thirty_seconds_service_counts_by_a_factor_of_e() -> None:
    for part, is_over in ((0.99, False), (1.01, True)):
        shares = TenantShares()
        for tenant in "ab":
            shares.came(tenant, 1.0, 100.0)
        shares.started("b", 100.0, 100.0)
        shares.started("a", 100.0 / math.e * part, 130.0 - 60.0)
        shares.started("a", 0.0, 130.0)
        assert not shares.over("a", 1.0, 1), "of earlier times it is less"
        shares = TenantShares()
        for tenant in "ab":
            shares.came(tenant, 1.0, 100.0)
        shares.started("b", 100.0, 100.0)
        shares.started("a", 100.0 / math.e * part, 130.0)
        shares.started("a", 0.0, 130.0)
        assert shares.over("a", 1.0, 1) is is_over


def test_a_start_that_is_taken_back_leaves_nothing() -> None:
    shares = TenantShares()
    for tenant in "ab":
        shares.came(tenant, 1.0, 100.0)
    shares.started("a", 10, 100.0)
    shares.started("a", 7, 100.0)
    shares.take_back("a", 7, 100.0)
    shares.started("b", 9.9, 100.0)
    assert shares.over("a", 1.0, 1)
    assert not shares.over("a", 1.0, 2), "it runs one request"
    shares.started("b", 0.2, 100.0)
    assert not shares.over("a", 1.0, 1)


def test_before_anybody_comes_nobody_competes() -> None:
    assert not TenantShares().contended
