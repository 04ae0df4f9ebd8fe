from __future__ import annotations

import pytest

from kvasir_operator.scaling.load import Load, load_of

ONE = {
    "concurrency": 3,
    "queue": 1,
    "held": 1,
    "in_flight_tokens": 100,
    "kv_usage": 0.5,
    "requests": 4,
    "ttft_seconds": {"p90": 1.5},
    "itl_seconds": {"p90": None},
}


def test_every_router_knows_its_own_requests_and_what_engines_tell_all() -> None:
    other = {**ONE, "concurrency": 2, "held": 0, "requests": 1, "ttft_seconds": {"p90": 0.5}}
    found = load_of([ONE, other])
    assert (found.concurrency, found.requests, found.in_flight_tokens) == (5, 5, 100)
    assert (found.kv_usage, found.ttft, found.itl) == (0.5, 1.5, None)


@pytest.mark.parametrize(
    ("load", "idle"),
    [(Load(), True), (Load(concurrency=1), False), (Load(requests=1), False)],
)
def test_idle_is_without_a_request_now_and_in_the_window(load: Load, idle: bool) -> None:
    assert load.idle is idle
