from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir_operator.controller.work_queue import Key, WorkQueue

A, B = Key("n", "a"), Key("n", "b")


async def test_a_key_that_is_named_twice_comes_once() -> None:
    queue = WorkQueue[Key]()
    for key in (A, B, A):
        queue.add(key)
    assert [await queue.next_key(), await queue.next_key()] == [A, B]
    assert len(queue) == 0


async def test_news_of_a_key_at_work_brings_it_back_and_not_to_a_second_worker() -> None:
    queue = WorkQueue[Key]()
    queue.add(A)
    await queue.next_key()
    queue.add(A)
    assert len(queue) == 0
    queue.done(A)
    assert await queue.next_key() == A


async def test_failures_wait_longer_each_time_and_news_do_not_wait() -> None:
    queue = WorkQueue[Key](first_delay=10, longest=35)
    delays = []
    for _ in range(4):
        queue.add(A)
        await queue.next_key()
        delays.append(queue.failed(A))
    assert delays == [10, 20, 35, 35]
    queue.add(A)
    assert await asyncio.wait_for(queue.next_key(), 30) == A
    queue.done(A)
    queue.add(A)
    await queue.next_key()
    assert queue.failed(A) == 10


async def test_the_earlier_of_two_times_holds() -> None:
    queue = WorkQueue[Key]()
    queue.add_later(A, 3600)
    queue.add_later(A, 0.01)
    queue.add_later(A, 7200)
    assert await asyncio.wait_for(queue.next_key(), 30) == A


async def test_what_is_forgotten_does_not_come() -> None:
    queue = WorkQueue[Key]()
    queue.add_later(A, 0.01)
    queue.forget(A)
    queue.add_later(B, 0.02)
    assert await asyncio.wait_for(queue.next_key(), 30) == B


async def test_an_offer_neither_disturbs_work_nor_a_pause_after_a_failure() -> None:
    queue = WorkQueue[Key](first_delay=10)
    for key in (A, A, B):
        queue.offer(key)
    assert await queue.next_key() == A
    queue.offer(A)
    queue.failed(A)
    queue.offer(A)
    assert await queue.next_key() == B
    queue.done(B)
    queue.offer(B)
    assert len(queue) == 1
    assert await queue.next_key() == B


class Queue(RuleBasedStateMachine):
    """No key is lost, none is worked on twice at once."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.queue = WorkQueue[Key](first_delay=3600)
        self.wanted: set[Key] = set()
        self.active: set[Key] = set()

    keys = st.sampled_from([A, B, Key("m", "a")])

    @rule(key=keys)
    def add(self, key: Key) -> None:
        self.queue.add(key)
        self.wanted.add(key)

    @precondition(lambda self: self.wanted - self.active)
    @rule()
    def take(self) -> None:
        async def first() -> Key:
            return await asyncio.wait_for(self.queue.next_key(), 30)

        key = self.runner.run(first())
        assert key in self.wanted
        assert key not in self.active
        self.wanted.remove(key)
        self.active.add(key)

    @precondition(lambda self: self.active)
    @rule(data=st.data(), well=st.booleans())
    def end(self, data: st.DataObject, well: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        self.active.remove(key)

        async def release() -> None:
            if well:
                self.queue.done(key)
            else:
                self.queue.failed(key)

        self.runner.run(release())

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.queue) == len(self.wanted - self.active)

    def teardown(self) -> None:
        self.runner.close()


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=30, stateful_step_count=30)
