"""Limits of a stream's first byte and pauses, by a clock that the test moves."""

import asyncio
from collections.abc import Callable

import pytest

from kvasir_router.proxy.failures.silence_limit import FIRST_BYTE, IDLE, SilenceLimit


class Timer:
    """asyncio.TimerHandle."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Event loop that has timers alone."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def go_to(self, now: float) -> None:
        """Call what is due on the way, at its time."""
        while due := [timer for timer in self.timers if timer.callback and timer.when <= now]:
            timer = min(due, key=lambda timer: timer.when)
            self.now = max(self.now, timer.when)
            self.timers.remove(timer)
            if timer.callback:
                timer.callback()
        self.now = now


@pytest.fixture
def loop(monkeypatch) -> Loop:
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def exceeded() -> list[tuple[str, float]]:
    return []


@pytest.fixture
def limit(loop, exceeded) -> SilenceLimit:
    return SilenceLimit(20.0, 5.0, lambda *told: exceeded.append(told))


def test_no_first_byte(loop, limit, exceeded) -> None:
    loop.go_to(119.9)
    assert exceeded == []
    loop.go_to(200.0)
    assert exceeded == [(FIRST_BYTE, 20.0)]


def test_a_pause_counts_from_the_last_part(loop, limit, exceeded) -> None:
    assert [limit.heard() for _ in range(2)] == [True, False]
    for now in (104.0, 108.0, 112.0):
        loop.go_to(now)
        limit.heard()
    loop.go_to(116.9)
    assert exceeded == []
    loop.go_to(117.1)
    assert exceeded == [(IDLE, 5.0)]


def test_a_client_that_does_not_read_is_no_silence_of_the_engine(loop, limit, exceeded) -> None:
    limit.heard()
    loop.go_to(103.0)
    limit.pause()
    loop.go_to(1_000.0)
    limit.resume()
    loop.go_to(1_004.9)
    assert exceeded == []
    loop.go_to(1_005.1)
    assert exceeded == [(IDLE, 5.0)]


def test_a_router_that_stood_still_waits_anew(loop, limit, exceeded) -> None:
    timer = loop.timers.pop()
    loop.now = 150.0
    timer.callback()
    assert exceeded == []
    loop.go_to(170.1)
    assert exceeded == [(FIRST_BYTE, 20.0)]


def test_nothing_is_looked_at_after_the_end_or_without_limits(loop, limit, exceeded) -> None:
    limit.end()
    unlimited = SilenceLimit(0.0, 0.0, lambda *told: exceeded.append(told))
    unlimited.heard()
    loop.go_to(1_000.0)
    assert exceeded == []
