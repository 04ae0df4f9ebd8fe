"""How many requests an engine runs is learned from its reports."""

from random import Random

import pytest

from kvasir_router.fleet.engine_slots import EngineSlots


class Engine:
    """The slots of an engine with this router's requests."""

    def __init__(self, spare: int) -> None:
        self._slots = EngineSlots(spare)
        self._in_flight = 0

    @property
    def full(self) -> bool:
        return self._in_flight >= self._slots.bound

    def sent(self) -> None:
        self._in_flight += 1

    def ended(self) -> None:
        self._in_flight -= 1

    def reported(self, running: int, waiting: int) -> None:
        self._slots.reported(running, waiting, self._in_flight)


def test_an_engine_of_which_nothing_is_known_is_never_full() -> None:
    slots = Engine(spare=4)
    for _ in range(1000):
        slots.sent()
    assert not slots.full


def test_requests_that_keep_waiting_say_that_it_is_full() -> None:
    slots = Engine(spare=4)
    slots.reported(32, 10)
    assert not slots.full
    slots.reported(32, 10)
    assert slots.full
    slots.reported(32, 3)
    assert not slots.full
    slots.sent()
    assert slots.full


def test_requests_that_wait_for_a_step_say_nothing() -> None:
    slots = Engine(spare=4)
    for running in range(10, 100, 10):
        slots.reported(running, 10)
        assert not slots.full


def test_an_end_makes_room_before_the_next_report() -> None:
    slots = Engine(spare=4)
    slots.reported(8, 4)
    slots.reported(8, 4)
    assert slots.full
    slots.ended()
    assert not slots.full


def test_a_bound_at_which_nobody_waits_grows() -> None:
    slots = Engine(spare=4)
    slots.reported(8, 4)
    slots.reported(8, 4)
    slots.reported(12, 0)
    for _ in range(4):
        assert not slots.full
        slots.sent()
    assert slots.full
    slots.reported(16, 0)
    assert not slots.full


def test_less_memory_means_fewer_slots() -> None:
    slots = Engine(spare=4)
    slots.reported(64, 4)
    slots.reported(64, 4)
    for _ in range(2):
        slots.reported(20, 4)
    assert slots.full
    slots.reported(20, 3)
    slots.sent()
    assert slots.full


def test_without_a_spare_there_is_no_bound() -> None:
    slots = Engine(spare=0)
    slots.reported(8, 100)
    slots.reported(8, 100)
    assert not slots.full


@pytest.mark.parametrize("capacity", [1, 8, 64, 256])
def test_a_busy_engine_stays_busy_and_its_queue_short(capacity) -> None:
    """A simulated engine: what waits is started as places become free; reports every ten turns."""
    random = Random(capacity)
    slots = Engine(spare=4)
    running = waiting = idle = queued = 0
    for turn in range(20_000):
        while not slots.full and waiting < 20:
            slots.sent()
            waiting += 1
        started = min(waiting, capacity - running)
        running, waiting = running + started, waiting - started
        if turn > 5000:
            idle += running < capacity * 0.9
            queued += waiting
        ended = sum(random.random() < 0.005 for _ in range(running))
        running -= ended
        for _ in range(ended):
            slots.ended()
        if turn % 10 == 0:
            slots.reported(running, waiting)
    assert idle < 100
    assert queued / 15_000 < 4 + capacity // 4


def test_what_is_on_its_way_is_not_forgotten_at_a_report() -> None:
    slots = Engine(spare=4)
    slots.reported(16, 4)
    slots.reported(16, 4)
    for _ in range(20):
        slots.sent()
    slots.reported(16, 0)
    assert slots.full
