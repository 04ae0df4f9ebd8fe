from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir_operator.scaling.load import Load
from kvasir_operator.scaling.model_scaler import ModelScaler
from kvasir_operator.scaling.recommendation import Replicas


class Played:
    """A model whose replicas are ready as soon as they are asked for, one look a second."""

    def __init__(self, replicas: int = 1, **wanted: Any) -> None:
        content = {"maxReplicas": 10, "target": 10, **wanted}
        self.wanted = Autoscaling.model_validate(content)
        self.replicas = replicas
        self.now = 1000.0
        self.why = ""
        self._scaler = ModelScaler()

    def look(self, concurrency: float = 0, ready: int | None = None, **more: Any) -> int:
        load = Load(concurrency=concurrency, **more)
        replicas = Replicas(self.replicas, self.replicas if ready is None else ready)
        found, self.why = self._scaler.decide(self.now, self.wanted, replicas, load)
        if found != self.replicas:
            self._scaler.changed(self.now, found - self.replicas)
            self.replicas = found
        self.now += 1
        return found

    def looks(self, seconds: int, concurrency: float = 0, **more: Any) -> list[int]:
        return [self.look(concurrency, **more) for _ in range(seconds)]


def test_more_come_at_once_and_fewer_after_five_minutes() -> None:
    one = Played()
    assert one.look(25) == 3
    assert one.why == "concurrency is 25, 10 for each replica"
    assert one.looks(299, 5) == [3] * 299
    assert one.look(5) == 1


def test_a_burst_in_the_window_keeps_what_it_asked_for() -> None:
    one = Played()
    one.look(25)
    one.looks(200, 5)
    one.look(25)
    assert one.looks(299, 5) == [3] * 299
    assert one.look(5) == 1


def test_after_a_start_what_there_is_counts_as_asked_for() -> None:
    one = Played(replicas=4)
    assert one.looks(300, 5) == [4] * 300
    assert one.looks(2, 5)[-1] == 1


@pytest.mark.parametrize(("current", "found"), [(1, 2), (9, 8)])
def test_bounds_hold_at_once(current: int, found: int) -> None:
    one = Played(replicas=current, minReplicas=2, maxReplicas=8)
    assert one.look(50 if current > 1 else 0) == (found if current > 1 else 2)


def test_replicas_come_no_faster_than_the_rate() -> None:
    rate = {"pods": 1, "percent": 0, "periodSeconds": 10}
    one = Played(behavior={"scaleUp": rate})
    assert one.looks(25, 100) == [2] * 10 + [3] * 10 + [4] * 5
    fast = Played()  # four or twice as many in 15 s
    assert fast.looks(16, 100) == [5] * 15 + [10]


def test_replicas_go_no_faster_than_the_rate() -> None:
    rate = {"stabilizationSeconds": 0, "pods": 1, "percent": 0, "periodSeconds": 10}
    one = Played(replicas=4, behavior={"scaleDown": rate})
    assert one.looks(25, 5) == [3] * 10 + [2] * 10 + [1] * 5


def test_more_must_have_been_asked_for_as_long_as_the_window() -> None:
    one = Played(behavior={"scaleUp": {"stabilizationSeconds": 5}})
    assert one.looks(3, 100) == [1] * 3
    assert one.look(5) == 1
    assert one.looks(6, 100) == [1] * 4 + [5] * 2


def test_the_last_one_goes_when_no_request_came_for_as_long_as_is_said() -> None:
    one = Played(minReplicas=0, idleSeconds=90)
    assert one.looks(50, 1) == [1] * 50
    # The last of them ended: the window of routers shows it for a minute
    assert one.looks(60, 0, requests=1) == [1] * 60
    assert one.looks(32) == [1] * 30 + [0] * 2
    assert one.why == "nothing is asked for"


def test_one_that_was_never_asked_stays_for_as_long_as_is_said_from_when_it_is_ready() -> None:
    one = Played(minReplicas=0, idleSeconds=60)
    assert one.looks(900, 0, ready=0) == [1] * 900
    assert one.looks(62) == [1] * 60 + [0] * 2


def test_the_first_request_wakes_one_at_once() -> None:
    one = Played(replicas=0, minReplicas=0)
    assert one.looks(10) == [0] * 10
    assert one.look(1) == 1
    assert one.why == "1 requests wait"
    assert one.look(45) == 5


def test_without_minimum_zero_the_last_one_stays() -> None:
    one = Played(minReplicas=1, idleSeconds=60)
    assert set(one.looks(900)) == {1}


def test_latency_is_smoothed() -> None:
    one = Played(targets={"ttftSeconds": 1.0}, behavior={"scaleUp": {"percent": 100, "pods": 1}})
    assert one.looks(60, 1, ttft=0.3) == [1] * 60
    # A minute of bad latency moves it, one second of it does not
    assert one.look(1, ttft=2.0) == 1
    assert one.looks(60, 1, ttft=0.3) == [1] * 60
    assert one.looks(60, 1, ttft=2.0)[-1] > 1


@given(
    loads=st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 3), st.integers(1, 120)), max_size=60
    ),
    low=st.integers(0, 3),
    start=st.integers(0, 6),
)
def test_whatever_the_load_replicas_stay_in_their_bounds(
    loads: list[tuple[int, int, int]], low: int, start: int
) -> None:
    one = Played(replicas=start, minReplicas=low, maxReplicas=5)
    for concurrency, requests, seconds in loads:
        before = one.replicas
        found = one.look(concurrency, requests=requests)
        one.now += seconds - 1
        assert low <= found <= 5
        # Never to none with a request about, and never without one from none
        assert found > 0 or (concurrency == 0 and (requests == 0 or before == 0))
        assert before or not found or concurrency or low
