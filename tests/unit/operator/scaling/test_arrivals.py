from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kvasir_operator.scaling.arrivals import Arrivals
from kvasir_operator.scaling.load import Load
from kvasir_operator.scaling.recommendation import Replicas

TARGET = 10


class Seen:
    """Estimates of a model that is looked at every second."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._arrivals = Arrivals()

    def look(
        self, concurrency: float, requests: float, wanted: int = 4, ready: int = 4
    ) -> int | None:
        self.now += 1
        load = Load(concurrency=concurrency, requests=requests)
        return self._arrivals.most(self.now, load, Replicas(wanted, ready), TARGET)

    def settle(self, seconds: int = 300) -> None:
        """10 requests a second, each of 3 s: 30 in progress on four replicas."""
        for _ in range(seconds):
            assert self.look(30, 600) is None


def test_a_backlog_during_cold_starts_asks_for_what_arrivals_need() -> None:
    one = Seen()
    one.settle()
    # Twice as many come; what piles up would ask for 60 replicas
    for each in range(60):
        found = one.look(30 + 10 * each, 600, wanted=9, ready=4)
    assert found is not None
    # 20 a second of 3 s each, at ten a replica, and a little more
    assert 6 <= found <= 8


def test_a_backlog_on_replicas_that_are_all_up_is_believed() -> None:
    one = Seen()
    one.settle()
    assert one.look(600, 600, wanted=9, ready=4) is not None
    assert one.look(600, 600, wanted=9, ready=9) is None


def test_nothing_is_bounded_before_a_request_s_time_is_known() -> None:
    one = Seen()
    assert [one.look(600, 600, wanted=9, ready=1) for _ in range(200)] == [None] * 200
    fresh = Seen()
    fresh.settle(59)
    assert fresh.look(600, 600, wanted=9, ready=4) is None


def test_no_arrivals_bound_nothing() -> None:
    one = Seen()
    one.settle()
    for _ in range(61):
        found = one.look(41, 0, wanted=9, ready=4)
    assert found is None


def test_the_time_of_a_request_is_learned_anew() -> None:
    one = Seen()
    one.settle()
    for _ in range(900):  # now each takes 1 s
        assert one.look(10, 600) is None
    found = one.look(50, 600, wanted=9, ready=4)
    assert found is not None
    assert found <= 2


@given(
    looks=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 5000), st.integers(0, 50)), max_size=100
    )
)
def test_a_bound_is_a_number_of_replicas(looks: list[tuple[int, int, int]]) -> None:
    one = Seen()
    for concurrency, requests, ready in looks:
        one.now += 30
        found = one.look(concurrency, requests, wanted=50, ready=ready)
        assert found is None or (found >= 1 and math.isfinite(found))
