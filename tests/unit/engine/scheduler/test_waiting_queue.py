from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.sequence import Sequence, make_sequences
from kvasir_engine.scheduler.waiting_queue import WaitingQueue
from kvasir_engine.settings import SchedulingPolicy


def sequence(order: int, priority: int = 0, tokens: int = 3) -> Sequence:
    request = EngineRequest("r", order, [1] * tokens, SamplingParams(), priority=priority)
    return make_sequences(request, order=order, seed=0, max_model_len=64)


@given(
    policy=st.sampled_from(["fcfs", "priority"]),
    actions=st.lists(st.tuples(st.sampled_from("+-p"), st.integers(0, 3)), max_size=60),
)
def test_it_serves_in_order_whatever_is_dropped(
    policy: SchedulingPolicy, actions: list[tuple[str, int]]
) -> None:
    queue = WaitingQueue(policy)
    model: list[Sequence] = []
    for order, (action, number) in enumerate(actions):
        if action == "+":
            model.append(sequence(order, priority=number, tokens=1 + number))
            queue.push(model[-1])
        elif action == "-" and model:
            queue.drop(model.pop(number % len(model)))
        elif action == "p" and model:
            first = min(model, key=lambda s: (s.request.priority * (policy != "fcfs"), s.order))
            assert queue.peek() is first
            assert queue.pop() is first
            model.remove(first)
        assert len(queue) == len(model)
        assert queue.num_tokens == sum(len(s.tokens) for s in model)
    assert (queue.peek() is None) is (not model)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_preempted_sequence_comes_back_to_its_place(policy: SchedulingPolicy) -> None:
    queue = WaitingQueue(policy)
    early, late = sequence(0), sequence(1)
    queue.push(late)
    queue.push(early)
    assert queue.pop() is early


def test_the_dropped_do_not_pile_up_behind_a_head_that_waits() -> None:
    queue = WaitingQueue("fcfs")
    queue.push(sequence(0))
    for order in range(1, 1000):
        queue.push(sequence(order))
        queue.drop(queue._heap[-1][1])
    assert len(queue) == 1
    assert len(queue._heap) <= 3
