"""Steps that fail anywhere: every sample ends with its own tokens or with an error, once.

A fault is armed for the nth call of a method of scheduler, KV manager or device, and goes off in a
step, once: while it is planned, launched, retired, or while another fault is recovered from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import rule, run_state_machine_as_test

from kvasir_engine.core.beam_requests import BeamRequests
from kvasir_engine.kv.block_pool import BlockPool
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import FinishReason
from kvasir_engine.scheduler.deferred_release import DeferredReleases
from kvasir_engine.scheduler.forks import ForkPlanner
from kvasir_engine.scheduler.masks import MaskPlanner
from kvasir_engine.scheduler.plan_builder import PlanBuilder
from kvasir_engine.scheduler.row_blocks import BlockCommits, RowAllocator
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.scheduler.waiting_queue import WaitingQueue

from .fake_grammar import FakeMatcher
from .plan_model import ModelStep, PlanModel
from .test_state_machine import SchedulerMachine

PLACES: list[tuple[type, str]] = [
    (PlanModel, "forward"),
    (PlanModel, "sample"),
    (PlanModel, "_write"),
    (ModelStep, "wait"),
    (Scheduler, "launched"),
    (BlockCommits, "commit_full"),
    (Scheduler, "retire"),
    (KVManager, "find_prefix"),
    (KVManager, "acquire_prefix"),
    (KVManager, "append"),
    (KVManager, "commit"),
    (BlockPool, "allocate"),
    (BlockPool, "share"),
    (BlockPool, "release"),
    (RowTable, "acquire"),
    (RowTable, "release"),
    (RowAllocator, "append"),
    (RowAllocator, "preempt"),
    (WaitingQueue, "push"),
    (WaitingQueue, "pop"),
    (DeferredReleases, "retire"),
    (DeferredReleases, "add"),
    (ForkPlanner, "plan_copies"),
    (ForkPlanner, "part"),
    (PlanBuilder, "build"),
    (BeamRequests, "hear"),
    (MaskPlanner, "fill_masks"),
    (FakeMatcher, "accept"),
    (FakeMatcher, "fill"),
]


class InjectedError(Exception):
    """A defect."""


class Fault:
    """Raise at the nth call of a method while a step runs."""

    def __init__(self) -> None:
        self.place: tuple[type, str] | None = None
        self.left = 0
        self.error: Exception = InjectedError()
        self.in_step = False

    def arm(self, place: tuple[type, str], nth: int, error: Exception) -> None:
        self.place, self.left, self.error = place, nth, error

    def check(self, place: tuple[type, str]) -> None:
        if self.in_step and self.place == place:
            self.left -= 1
            if self.left < 0:
                self.place = None
                raise self.error


@contextmanager
def faults() -> Iterator[Fault]:
    """Wrap every place, so that the fault can go off there."""
    fault = Fault()

    def wrap(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def wrapped(self: Any, *args: Any, **how: Any) -> Any:
            fault.check((owner, name))
            return method(self, *args, **how)

        patch.setattr(owner, name, wrapped)

    with pytest.MonkeyPatch.context() as patch:
        for place in PLACES:
            wrap(*place)
        yield fault


class FailingMachine(SchedulerMachine):
    fault: ClassVar[Fault]

    def __init__(self) -> None:
        super().__init__()
        self.fault.place = None  # An earlier run's may not have gone off.

    @rule(
        place=st.sampled_from(PLACES),
        nth=st.integers(0, 6),
        error=st.sampled_from([InjectedError(), MemoryError()]),
    )
    def arm(self, place: tuple[type, str], nth: int, error: Exception) -> None:
        self.fault.arm(place, nth, error)


def in_steps(engine: Any, fault: Fault) -> Any:
    """`engine`, whose faults go off in steps only."""
    step = engine.loop.step

    def watched() -> Any:
        fault.in_step = True
        try:
            return step()
        finally:
            fault.in_step = False

    engine.loop.step = watched
    return engine


@pytest.mark.slow
def test_a_fault_anywhere_leaves_a_serving_engine(
    engine_model: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # Thousands of tracebacks.
    with faults() as fault:

        class Machine(FailingMachine):
            make = staticmethod(lambda **shape: in_steps(engine_model(**shape), fault))

        Machine.fault = fault
        run_state_machine_as_test(Machine)


def add_requests(engine: Any) -> list[int]:
    return [
        engine.add([1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=6),
        engine.add([5, 6, 7], max_tokens=8, n=2),
        engine.add(list(range(30)), max_tokens=4, prompt_logprobs=1),
        engine.add([1, 2, 3, 4, 5], max_tokens=5, n=2, use_beam_search=True),
    ]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_every_call_may_fail(
    engine_model: Callable[..., Any], place: tuple[type, str], overlap: bool
) -> None:
    """Of a workload in which samples and searches end in one step."""
    for nth in range(12):
        with faults() as fault:
            engine = in_steps(engine_model(rows=6, budget=16, overlap=overlap), fault)
            for _ in range(2):
                engine.add([1, 2, 3], max_tokens=3)
                engine.add([4, 5], max_tokens=3, n=2, use_beam_search=True)
                engine.add([4, 5], max_tokens=3, structured_outputs="one")
            add_requests(engine)
            fault.arm(place, nth, MemoryError() if nth % 2 else InjectedError())
            engine.run()


@pytest.mark.parametrize("nth", range(6))
@pytest.mark.parametrize("place", ["forward", "sample", "wait"])
def test_a_defect_ends_the_requests_of_its_step_alone(
    engine_model: Callable[..., Any], place: str, nth: int
) -> None:
    """Those that wait for a row meanwhile, and those that come later, are served."""
    with faults() as fault:
        engine = in_steps(engine_model(rows=4, budget=16), fault)
        add_requests(engine)
        late = engine.add([9, 9, 9], max_tokens=9)
        fault.arm((ModelStep if place == "wait" else PlanModel, place), nth, InjectedError())
        engine.run()
    ended = {handle for handle, each in engine.heard.items() if each.finish is FinishReason.ERROR}
    assert ended
    assert late not in ended or nth > 2, "it was not in the step that failed"
    assert engine.counters.failed_steps == 1
    again = add_requests(engine)
    engine.run()
    assert all(engine.heard[handle].finish is not FinishReason.ERROR for handle in again)


@pytest.mark.parametrize("nth", range(6))
@pytest.mark.parametrize("place", ["forward", "sample"])
def test_a_step_short_of_memory_is_planned_smaller(
    engine_model: Callable[..., Any], place: str, nth: int
) -> None:
    """And no request ends, also no beam search."""
    with faults() as fault:
        engine = in_steps(engine_model(rows=8, budget=16), fault)
        add_requests(engine)
        fault.arm((PlanModel, place), nth, MemoryError())
        engine.run()
    assert engine.scheduler.limit.lowered
    assert all(each.finish is not FinishReason.ERROR for each in engine.heard.values())


@pytest.mark.parametrize("place", [(Scheduler, "retire"), (DeferredReleases, "retire")])
def test_a_step_that_was_taken_in_by_half_ends_its_requests(
    engine_model: Callable[..., Any], place: tuple[type, str]
) -> None:
    """Also for want of memory: tokens may be known that the client has not been told."""
    for nth in range(4):
        with faults() as fault:
            engine = in_steps(engine_model(rows=4, budget=16), fault)
            add_requests(engine)
            fault.arm(place, nth, MemoryError())
            engine.run()
        ends = {each.finish for each in engine.heard.values()}
        assert FinishReason.ERROR in ends
        assert FinishReason.LENGTH in ends


def test_a_step_short_of_memory_twice_ends_its_requests(engine_model: Callable[..., Any]) -> None:
    """The largest prefill waited, so it was not in the second step."""
    engine = engine_model(rows=4, budget=32)
    long = engine.add(list(range(24)), max_tokens=4)
    short = engine.add([1, 2, 3], max_tokens=4)
    calls = iter([MemoryError(), MemoryError()])
    forward = engine.device.forward

    def failing(plan: Any) -> None:
        error = next(calls, None)
        if error is not None:
            raise error
        forward(plan)

    engine.device.forward = failing
    engine.run()
    assert engine.heard[short].finish is FinishReason.ERROR
    assert engine.heard[long].finish is FinishReason.LENGTH


def test_planning_that_fails_once_loses_nothing_and_twice_ends_all(
    engine_model: Callable[..., Any],
) -> None:
    for times, ends in ((1, False), (2, True)):
        engine = engine_model(rows=4, budget=32)
        add_requests(engine)
        for _ in range(3):
            engine.step()
        left = [InjectedError()] * times
        schedule = engine.scheduler.schedule

        def failing(left: list[Any] = left, schedule: Any = schedule) -> Any:
            if left:
                raise left.pop()
            return schedule()

        engine.scheduler.schedule = failing
        engine.run()
        errors = [each.finish is FinishReason.ERROR for each in engine.heard.values()]
        assert all(errors) if ends else not any(errors)


def test_blocks_that_nobody_gives_back_are_found_again(engine_model: Callable[..., Any]) -> None:
    """A scheduler that has work and plans nothing is built anew."""
    engine = engine_model(num_blocks=(20,))
    engine.kv.pools[0].allocate(19)
    handle = engine.add([1, 2, 3], max_tokens=4)
    while not engine.loop.idle:
        engine.step()
    assert engine.heard[handle].finish is FinishReason.LENGTH
    engine.check_results()


def test_rows_of_the_step_after_a_failed_one_are_in_use_until_it_retires(
    engine_model: Callable[..., Any],
) -> None:
    engine = engine_model(rows=2)
    handle = engine.add([1, 2, 3], max_tokens=4)
    forward = engine.device.forward

    def failing(plan: Any) -> None:
        engine.device.forward = forward
        raise MemoryError

    engine.device.forward = failing
    engine.step()
    assert engine.counters.failed_steps == 1
    engine.step()
    engine.end(handle)
    assert engine.scheduler.rows.num_free == 1
    engine.run()
    assert engine.scheduler.rows.num_free == 2


def test_a_request_that_a_failure_ends_after_a_token_counts_among_the_ended(
    engine_model: Callable[..., Any],
) -> None:
    engine = engine_model(overlap=False)
    first = engine.add([1, 2, 3], max_tokens=4)
    second = engine.add([4, 5, 6], max_tokens=4)
    engine.step()

    def failing(plan: Any) -> None:
        raise InjectedError

    engine.device.forward = failing
    engine.step()
    assert [each.handle for each in engine.scheduler.ended.take()] == [first, second] == [0, 1]


def test_nothing_is_in_flight_in_a_scheduler_that_is_built_anew(
    engine_model: Callable[..., Any],
) -> None:
    engine = engine_model()
    assert engine.scheduler.releases.retired == -1
    engine.add([1, 2, 3], max_tokens=4)
    engine.run()
    last = engine.device.plans[-1].step_id
    assert last > 0
    engine.scheduler.rebuild()
    assert engine.scheduler.releases.retired == last
