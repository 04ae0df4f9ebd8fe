"""The share of requests that may be repeated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.fleet.retry_budget import RetryBudget


def spend_all(budget: RetryBudget, now: float) -> int:
    return next(count for count in range(10_000) if not budget.spend(now))


@pytest.mark.parametrize(
    ("requests", "allowed"), [(0, 10), (49, 10), (50, 10), (55, 11), (1000, 200)]
)
def test_a_fifth_and_at_least_the_floor(requests: int, allowed: int) -> None:
    budget = RetryBudget(ratio=0.2, floor=10)
    for _ in range(requests):
        budget.request(100.0)
    assert spend_all(budget, 100.0) == allowed
    assert budget.refused == 1


def test_old_requests_and_old_repeats_stop_counting() -> None:
    budget = RetryBudget(ratio=0.2, floor=10)
    for _ in range(1000):
        budget.request(100.0)
    assert spend_all(budget, 100.0) == 200
    assert spend_all(budget, 109.0) == 0
    # Half of the window before is within 10 s: 500 requests and 100 repeats of it.
    assert spend_all(budget, 115.0) == 0
    for _ in range(1000):
        budget.request(115.0)
    assert spend_all(budget, 115.0) == 200
    assert spend_all(budget, 300.0) == 10


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=400))
def test_never_more_than_the_ratio_over_any_two_windows(steps: list[tuple[float, bool]]) -> None:
    """Whatever the order, the repeats of 20 s are bounded by those 20 s' and 10 s before."""
    budget = RetryBudget(ratio=0.2, floor=3)
    now, requests, repeats = 50.0, [], []
    for wait, is_request in steps:
        now += wait
        if is_request:
            budget.request(now)
            requests.append(now)
        elif budget.spend(now):
            repeats.append(now)
    for start in repeats:
        spent = sum(start <= at <= start + 20 for at in repeats)
        came = sum(start - 20 <= at <= start + 20 for at in requests)
        assert spent <= 3 * 3 + 0.2 * 2 * came + 1
