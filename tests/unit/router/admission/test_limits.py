"""Buckets, budgets, and what is taken and given back."""

from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.admission.limits import (
    Allowance,
    DailyBudget,
    Excess,
    KeyLimits,
    Limit,
    TokenBucket,
)

DAY = 86_400
NOON = 20_000 * 86_400 + 43_200


def test_a_bucket_holds_a_minute_and_fills_evenly() -> None:
    bucket = TokenBucket(600, now=0.0)
    bucket.take(600, 0.0)
    assert bucket.wait(100, 0.0) == 10.0
    assert bucket.wait(100, 10.0) == 0.0
    assert bucket.level(1e6) == 600


def test_a_bucket_in_debt_pays_before_it_gives() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(60, 0.0)
    bucket.give_back(-120, 0.0)
    assert bucket.wait(1, 0.0) == 121.0


def test_more_than_the_bucket_holds_waits_for_all_of_it_and_not_forever() -> None:
    bucket = TokenBucket(60, now=0.0)
    assert bucket.wait(1000, 0.0) == 0.0
    bucket.take(1000, 0.0)
    assert bucket.wait(1, 0.0) == 941.0


def test_a_clock_that_stands_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(60, now=100.0)
    bucket.take(60, 100.0)
    assert bucket.level(100.0) == bucket.level(50.0) == 0.0


def test_a_small_share_lets_one_through_more_rarely() -> None:
    bucket = TokenBucket(0.5, now=0.0)
    assert bucket.wait(1, 0.0) == 0.0
    bucket.take(1, 0.0)
    assert bucket.wait(1, 0.0) == 120.0


def test_a_limit_of_zero_never_gives() -> None:
    bucket = TokenBucket(0, now=0.0)
    bucket.take(1, 0.0)
    assert bucket.wait(1, 1e9) == float("inf")


def test_another_limit_keeps_what_is_used() -> None:
    bucket = TokenBucket(100, now=0.0)
    bucket.take(80, 0.0)
    bucket.resize(200, 0.0)
    assert bucket.level(0.0) == 120
    bucket.resize(50, 0.0)
    assert bucket.level(0.0) == -30


def test_a_budget_begins_anew_at_midnight_utc() -> None:
    budget = DailyBudget(1000)
    budget.use(1000, NOON)
    assert budget.wait(NOON) == DAY / 2
    assert budget.wait(NOON + DAY / 2) == 0.0
    assert budget.used == 0


def test_what_was_set_aside_yesterday_is_not_given_back_today() -> None:
    budget = DailyBudget(1000)
    budget.use(500, NOON)
    budget.correct(-400, NOON, NOON + DAY)
    assert budget.used == 0
    budget.correct(-0.5, NOON, NOON + DAY)
    assert budget.used == 0
    budget.correct(30, NOON, NOON + DAY)
    assert budget.used == 30


def test_a_refused_request_takes_nothing() -> None:
    limits = KeyLimits(Allowance(requests_per_minute=2, tokens_per_minute=100), now=0.0)
    assert limits.admit(100, 0.0, NOON) is None
    for _ in range(5):
        assert limits.admit(50, 0.0, NOON) == Excess(Limit.TOKENS, 100, 30.0)
    assert limits.admit(50, 30.0, NOON) is None


def test_requests_are_counted_before_tokens() -> None:
    limits = KeyLimits(Allowance(requests_per_minute=1, tokens_per_minute=10), now=0.0)
    assert limits.admit(10, 0.0, NOON) is None
    assert limits.admit(10, 0.0, NOON) == Excess(Limit.REQUESTS, 1, 60.0)


def test_the_estimate_is_corrected() -> None:
    limits = KeyLimits(Allowance(tokens_per_minute=1000, tokens_per_day=1000), now=0.0)
    assert limits.admit(1000, 0.0, NOON) is None
    assert limits.admit(1, 0.0, NOON) is not None
    limits.settle(1000, 100, NOON, 0.0, NOON)
    assert limits.admit(900, 0.0, NOON) is None
    limits.settle(900, 950, NOON, 0.0, NOON)
    excess = limits.admit(1, 60.0, NOON + 60)
    assert excess is not None
    assert excess.limit is Limit.BUDGET
    assert excess.seconds == DAY / 2 - 60


def test_changed_limits_hold_at_once_and_keep_what_is_used() -> None:
    limits = KeyLimits(Allowance(tokens_per_day=100), now=0.0)
    assert limits.admit(100, 0.0, NOON) is None
    assert limits.admit(1, 0.0, NOON) is not None
    limits.change(Allowance(requests_per_minute=1, tokens_per_day=200), 0.0)
    assert limits.admit(50, 0.0, NOON) is None
    assert limits.admit(50, 0.0, NOON) == Excess(Limit.REQUESTS, 1, 60.0)
    limits.change(Allowance(), 0.0)
    assert limits.admit(10**9, 0.0, NOON) is None


def test_a_routers_part() -> None:
    assert Allowance(60, None, 900).divided(3) == Allowance(20, None, 300)


@given(
    per_minute=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5000), st.floats(0, 2)), max_size=60),
)
def test_over_any_time_no_more_is_used_than_the_limit_and_one_bucket(per_minute, steps) -> None:
    """Real usage between nothing and twice the estimate, settled at once: all that is used stays
    within capacity + rate * time, but for the excess of the last request over its estimate."""
    limits = KeyLimits(Allowance(tokens_per_minute=per_minute), now=0.0)
    now = used = last = 0.0
    for pause, estimate, factor in steps:
        now += pause
        if limits.admit(estimate, now, NOON) is None:
            real = int(estimate * factor)
            limits.settle(estimate, real, NOON, now, NOON)
            used += real
            last = max(last, real, estimate)
    assert used <= per_minute + per_minute * now / 60 + last + 1e-6


@given(
    limit=st.integers(1, 10_000),
    estimates=st.lists(st.integers(1, 2000), max_size=50),
)
def test_requests_at_once_pass_a_budget_by_at_most_one(limit, estimates) -> None:
    limits = KeyLimits(Allowance(tokens_per_day=limit), now=0.0)
    admitted = [each for each in estimates if limits.admit(each, 0.0, NOON) is None]
    assert sum(admitted[:-1]) < limit


def test_the_state_of_a_bucket_and_a_budget_can_be_moved() -> None:
    bucket, budget = TokenBucket(100, now=0.0), DailyBudget(1000)
    bucket.take(30, 5.0)
    budget.use(70, NOON)
    assert bucket.state == (30, 5.0)
    assert budget.state == (70, 20_000)
    larger, other = TokenBucket(200, now=0.0), DailyBudget(9)
    larger.restore(*bucket.state)
    other.restore(*budget.state)
    assert (larger.level(5.0), other.used) == (170, 70)
    assert other.wait(NOON) == DAY / 2
