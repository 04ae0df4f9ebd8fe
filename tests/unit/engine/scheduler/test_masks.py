"""Masks of constrained rows: made of all tokens before, while the step's forward pass runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.request import FinishReason
from kvasir_engine.scheduler.sequence import NEVER

from .engine_model import EngineModel
from .fake_grammar import may_follow


@pytest.mark.parametrize("overlap", [True, False])
def test_constrained_rows_decode_in_every_step(
    engine_model: Callable[..., EngineModel], overlap: bool
) -> None:
    engine = engine_model(overlap=overlap)
    first = engine.add([1, 2, 3], max_tokens=8, structured_outputs="one")
    other = engine.add([1, 2, 3], max_tokens=8)
    engine.run()
    output = engine.heard[first].tokens
    assert all(token in may_follow("one", output[:i]) for i, token in enumerate(output))
    assert [engine.heard[each].finish for each in (first, other)] == [FinishReason.LENGTH] * 2
    # A prompt and seven decodes, of both: nobody waits for a step.
    assert [len(plan.rows) for plan in engine.device.plans] == [2] * 8


def test_the_forward_pass_is_launched_before_the_step_before_is_taken_in(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    engine.add([1, 2, 3], max_tokens=4, structured_outputs="one")
    unretired: list[int] = []
    forward = engine.device.forward

    def noted(plan: Any) -> None:
        unretired.append(len(engine.device.unretired))
        forward(plan)

    engine.device.forward = noted  # type: ignore[method-assign]
    engine.run()
    assert unretired == [0, 1, 1, 1]


def test_each_sample_of_n_has_its_own_place(engine_model: Callable[..., EngineModel]) -> None:
    engine = engine_model()
    handle = engine.add([1, 2, 3], max_tokens=8, n=3, structured_outputs="one")
    engine.run()
    outputs = [engine.heard[handle + i].tokens for i in range(3)]
    assert len({tuple(each) for each in outputs}) == 3
    assert {engine.heard[handle + i].finish for i in range(3)} == {FinishReason.LENGTH}


def test_preemption_and_resumption_go_on_in_the_grammar(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model(num_blocks=(12,), rows=3)
    handles = [engine.add([i, 2, 3, 4], max_tokens=24, structured_outputs="one") for i in range(3)]
    resumed = engine.lone_tokens([9, 9], max_tokens=12, structured_outputs="another")
    handles.append(
        engine.add([9, 9], max_tokens=12, structured_outputs="another", resume=resumed[:5])
    )
    engine.run()
    assert engine.counters.preemptions
    assert {engine.heard[each].finish for each in handles} == {FinishReason.LENGTH}


def test_a_dead_end_ends_its_request_alone(engine_model: Callable[..., EngineModel]) -> None:
    engine = engine_model()
    dead = engine.add([1, 2, 3], max_tokens=8, structured_outputs="ends 3")
    other = engine.add([1, 2, 3], max_tokens=8, structured_outputs="one")
    engine.run()
    assert engine.heard[dead].finish is FinishReason.ERROR
    assert len(engine.heard[dead].tokens) == 3
    assert engine.heard[other].finish is FinishReason.LENGTH


def test_where_nobody_asked_for_a_grammar_its_dead_end_sets_free(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    freed = engine.add([1, 2, 3], max_tokens=8, structured_outputs="ends 3", may_be_free=True)
    wrong = next(t for t in range(24) if t not in may_follow("one", []))
    other = engine.add(
        [1, 2], max_tokens=8, structured_outputs="one", resume=[wrong], may_be_free=True
    )
    engine.run()
    for handle, taken in ((freed, 0), (other, 1)):
        assert engine.heard[handle].finish is FinishReason.LENGTH
        assert len(engine.heard[handle].tokens) == 8 - taken


def test_output_that_a_grammar_does_not_take_ends_its_request(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    wrong = next(t for t in range(24) if t not in may_follow("one", []))
    handle = engine.add([1, 2], max_tokens=8, structured_outputs="one", resume=[wrong])
    engine.run()
    assert engine.heard[handle].finish is FinishReason.ERROR


@pytest.mark.parametrize(("overlap", "ahead"), [(True, 1), (False, 0)])
def test_a_forward_pass_runs_while_news_are_delivered(
    engine_model: Callable[..., EngineModel],
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
    ahead: int,
) -> None:
    engine = engine_model(overlap=overlap)
    called = []
    for method in ("forward", "sample"):
        whole = getattr(engine.device, method)

        def noted(plan: Any, method: str = method, whole: Any = whole) -> Any:
            called.append(method)
            return whole(plan)

        monkeypatch.setattr(engine.device, method, noted)
    handle = engine.add([1, 2, 3], max_tokens=8, structured_outputs="one")
    for count in range(1, 6):
        engine.step_until(lambda: len(engine.heard[handle].tokens) == count)  # noqa: B023
        assert called.count("forward") - called.count("sample") == ahead
    engine.run()
    assert called.count("forward") == called.count("sample") == 8


def test_an_output_that_is_ended_between_the_halves_of_a_step_goes(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model(rows=1)
    first = engine.add([1, 2, 3], max_tokens=8, structured_outputs="one")
    engine.step_until(lambda: len(engine.heard[first].tokens) == 2)
    engine.end(first)
    second = engine.add([4, 5], max_tokens=8, structured_outputs="one")
    engine.run()
    assert len(engine.heard[second].tokens) == 8


def test_plans_without_constrained_rows_have_no_masks(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    engine.add([1, 2, 3], max_tokens=2, structured_outputs="one")
    engine.add([1, 2, 3], max_tokens=8)
    engine.run()
    masked = [plan.masked is not None for plan in engine.device.plans]
    assert masked[:2] == [True, True]
    assert not any(masked[2:])
    assert engine.scheduler.rows.num_constrained == 0
    assert np.count_nonzero(engine.scheduler.rows.masked_from < NEVER) <= 1


OPEN, CLOSE = 22, 23


def section(output: list[int]) -> list[int]:
    """Reasoning that the prompt has opened, up to its end."""
    return output[: output.index(CLOSE)]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 6])
def test_a_budget_ends_reasoning_and_the_answer_goes_on(
    engine_model: Callable[..., EngineModel], budget: int, overlap: bool
) -> None:
    engine = engine_model(overlap=overlap)
    handle = engine.add(
        [1, 2, 3], max_tokens=16, thinking=Thinking(OPEN, CLOSE, opened=True, budget=budget)
    )
    engine.run()
    output = engine.heard[handle].tokens
    assert (len(output), len(section(output))) == (16, budget)


def test_steps_within_and_behind_the_budget_have_no_masks(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    engine.add([1, 2, 3], max_tokens=16, thinking=Thinking(OPEN, CLOSE, opened=True, budget=6))
    engine.run()
    masked = [plan.masked is not None for plan in engine.device.plans]
    assert masked == [False] * 6 + [True] + [False] * 9


def test_reasoning_that_ends_within_its_budget_is_masked_once(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    ends = Thinking(OPEN, CLOSE, opened=True, budget=11)
    seed = next(
        seed
        for seed in range(1000)
        if CLOSE in engine.lone_tokens([1, 2], max_tokens=10, seed=seed)
    )
    handle = engine.add([1, 2], max_tokens=24, seed=seed, thinking=ends)
    free = engine.lone_tokens([1, 2], max_tokens=24, seed=seed)
    engine.run()
    assert engine.heard[handle].tokens == free
    assert sum(plan.masked is not None for plan in engine.device.plans) == 1


def test_an_output_that_does_not_think_has_no_budget(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    handles = [
        engine.add([i, 2], max_tokens=12, thinking=Thinking(OPEN, CLOSE, False, budget=2))
        for i in range(60)
    ]
    engine.run()
    outputs = [engine.heard[each].tokens for each in handles]
    thinking = [each for each in outputs if each[0] == OPEN]
    assert thinking
    assert all(CLOSE in each[1:4] for each in thinking)
    free = [engine.lone(engine.heard[h].request)[0] for h in handles]
    assert free == outputs


def test_a_grammar_begins_behind_a_budget(engine_model: Callable[..., EngineModel]) -> None:
    engine = engine_model()
    handle = engine.add(
        [1, 2],
        max_tokens=12,
        n=2,
        structured_outputs="one",
        thinking=Thinking(OPEN, CLOSE, opened=True, budget=3),
    )
    engine.run()
    for output in (engine.heard[handle + i].tokens for i in range(2)):
        form = output[len(section(output)) + 1 :]
        assert len(section(output)) <= 3
        assert all(token in may_follow("one", form[:i]) for i, token in enumerate(form))


def test_a_budget_counts_resumed_and_preempted_tokens(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model(num_blocks=(12,), rows=3)
    thinking = Thinking(OPEN, CLOSE, opened=True, budget=9)
    handles = [engine.add([i, 2, 3, 4], max_tokens=24, thinking=thinking) for i in range(3)]
    resumed = engine.lone_tokens([9, 9], max_tokens=20, thinking=thinking)
    handles.append(engine.add([9, 9], max_tokens=20, thinking=thinking, resume=resumed[:5]))
    engine.run()
    assert engine.counters.preemptions
    assert all(len(section(engine.heard[each].tokens)) <= 9 for each in handles[:3])
    assert resumed[:5] + engine.heard[handles[3]].tokens == resumed


def test_resumed_reasoning_beyond_the_budget_ends_at_once(
    engine_model: Callable[..., EngineModel],
) -> None:
    engine = engine_model()
    thinking = Thinking(OPEN, CLOSE, opened=True, budget=2)
    handle = engine.add([1, 2], max_tokens=12, thinking=thinking, resume=[4, 5, 6, 7])
    engine.run()
    assert engine.heard[handle].tokens[0] == CLOSE
