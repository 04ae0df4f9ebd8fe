"""Runs of tokens of which each is the only one that may follow: one step samples the first, the
next one computes them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.request import FinishReason
from kvasir_engine.scheduler import masks

from .engine_model import EngineModel

MakeEngine = Callable[..., EngineModel]


def forced_of(engine: EngineModel) -> list[tuple[int, int, int]]:
    """Row, index and token of what the device was told."""
    plans = [plan.forced for plan in engine.device.plans if plan.forced is not None]
    return [tuple(each) for plan in plans for each in plan.tolist()]


def add(engine: EngineModel, prompt: list[int], **how: Any) -> int:
    """A request in whose output seven of nine tokens are the only ones that may follow."""
    return engine.add(prompt, **{"structured_outputs": "runs", "max_tokens": 20, **how})


@pytest.mark.parametrize("overlap", [True, False])
def test_a_run_takes_one_step(engine_model: MakeEngine, overlap: bool) -> None:
    engine = engine_model(overlap=overlap)
    handle = add(engine, [1, 2, 3])
    engine.run()
    # Tokens 0 and 1 are free, 2 to 8 a run, and so on; the twentieth ends the output.
    samples = [int(plan.num_new[0]) for plan in engine.device.plans]
    assert samples == [3, 1, 1, 7, 1, 1, 7, 1]
    tokens = engine.heard[handle].tokens
    known = [(index - 3, token) for _, index, token in forced_of(engine)]
    assert known == [(i, tokens[i]) for i in (*range(3, 9), *range(12, 18))]


def test_the_tokens_of_a_run_are_told_together(engine_model: MakeEngine) -> None:
    engine = engine_model()
    handle = add(engine, [1, 2, 3], max_tokens=12)
    told = []
    while not engine.loop.idle:
        before = len(engine.heard[handle].tokens)
        engine.step()
        told.append(len(engine.heard[handle].tokens) - before)
    assert [count for count in told if count] == [1, 1, 7, 1, 1, 1]
    engine.check_results()


def test_a_request_with_logprobs_samples_each_token(engine_model: MakeEngine) -> None:
    engine = engine_model()
    forced, sampled = (add(engine, [1, 2, 3], seed=5, **how) for how in ({}, {"logprobs": 1}))
    engine.run()
    assert engine.heard[forced].tokens == engine.heard[sampled].tokens
    assert len(engine.heard[sampled].logprobs) == 20
    assert {row for row, _, _ in forced_of(engine)} == {forced_of(engine)[0][0]}
    assert len(engine.device.plans) == 20


@pytest.mark.parametrize("most", range(2, 13))
def test_an_output_ends_at_its_limit(engine_model: MakeEngine, most: int) -> None:
    engine = engine_model()
    handle = add(engine, [1, 2, 3], max_tokens=most)
    engine.run()
    assert len(engine.heard[handle].tokens) == most
    assert engine.heard[handle].finish is FinishReason.LENGTH


def test_a_run_of_one_row_among_many_makes_no_chunk(engine_model: MakeEngine) -> None:
    engine = engine_model(rows=8)
    for _ in range(7):
        engine.add([1, 2, 3], max_tokens=20)
    add(engine, [1, 2, 3])
    engine.run()
    assert not forced_of(engine)


def test_a_run_is_followed_where_the_step_has_chunks_anyway(engine_model: MakeEngine) -> None:
    engine = engine_model(rows=8, budget=9, chunk=2)
    handle = add(engine, [1, 2, 3])
    engine.step_until(lambda: len(engine.heard[handle].tokens) == 1)
    for _ in range(6):
        engine.add([1, 2, 3, 4, 5, 6, 7, 8] * 2, max_tokens=20)
    engine.run()
    assert forced_of(engine)


def test_what_is_expected_of_runs_follows_them_and_fades(engine_model: MakeEngine) -> None:
    engine = engine_model(rows=8)
    add(engine, [1, 2, 3])
    engine.run()
    seen = engine.scheduler.masks.expected
    assert seen > masks.USUAL_RUN  # its runs have six
    for _ in range(7):
        engine.add([1, 2, 3], max_tokens=20)
    add(engine, [1, 2, 3])
    engine.run()
    assert masks.USUAL_RUN < engine.scheduler.masks.expected < seen


def test_a_stop_token_within_a_run_is_sampled_and_ends_it(engine_model: MakeEngine) -> None:
    engine = engine_model()
    stop = engine.lone_tokens([1, 2, 3], structured_outputs="runs", max_tokens=20)[5]
    handle = add(engine, [1, 2, 3], stop_token_ids=[stop])
    engine.run()
    heard = engine.heard[handle]
    assert (heard.finish, heard.stop_reason) == (FinishReason.STOP, stop)
    assert stop not in [token for _, _, token in forced_of(engine)]
    assert len(heard.tokens) <= 6


def test_a_run_is_bounded(engine_model: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "MAX_FORCED", 2)
    engine = engine_model()
    add(engine, [1, 2, 3])
    engine.run()
    assert max(plan.num_new[0] for plan in engine.device.plans[1:]) == 3


def test_a_run_may_be_computed_in_parts(engine_model: MakeEngine) -> None:
    engine = engine_model(budget=4, chunk=3, rows=2)
    add(engine, [1, 2, 3])
    add(engine, [4])
    engine.run()
    assert forced_of(engine)


def test_runs_of_n_samples_after_preemption_and_behind_cached_blocks(
    engine_model: MakeEngine,
) -> None:
    engine = engine_model(num_blocks=(14,), rows=4)
    how = {"structured_outputs": "runs too", "max_tokens": 20}
    output = engine.lone_tokens([7, 7], **how)
    for at in (3, 6, 9):
        add(engine, [7, 7], **how, resume=output[:at], seed=1000)
    add(engine, [1, 2, 3, 4, 5], n=3, max_tokens=24)
    add(engine, [1, 2, 3, 4, 5], max_tokens=24)
    engine.run()
    assert engine.counters.preemptions
    assert engine.counters.prefix_hits
    assert forced_of(engine)


def test_a_row_that_is_aborted_within_a_run_is_handed_on(engine_model: MakeEngine) -> None:
    engine = engine_model(rows=1)
    first = add(engine, [1, 2, 3])
    engine.step_until(lambda: engine.scheduler.masks.forced)
    engine.end(first)
    second = add(engine, [4, 5, 6])
    engine.run()
    assert len(engine.heard[second].tokens) == 20


@pytest.mark.parametrize("method", ["forward", "sample"])
def test_a_run_that_is_lost_with_its_step_is_found_again(
    engine_model: MakeEngine, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    engine = engine_model()
    handle = add(engine, [1, 2, 3])
    whole = getattr(engine.device, method)
    failed = []

    def short(plan: Any) -> Any:
        if plan.forced is None or failed:
            return whole(plan)
        failed.append(plan)
        raise MemoryError

    monkeypatch.setattr(engine.device, method, short)
    engine.run()
    assert failed
    assert len(engine.heard[handle].tokens) == 20


def test_a_device_that_ignores_a_mask_fails_the_request(
    engine_model: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_model()
    handle = add(engine, [1, 2, 3])
    engine.step_until(lambda: len(engine.heard[handle].tokens) == 1)
    monkeypatch.setattr(engine.device, "_allowed", lambda *_: [23])
    while not engine.loop.idle:
        engine.loop.step()
    assert not engine.scheduler.by_handle


def test_the_end_of_reasoning_leads_into_a_run(engine_model: MakeEngine) -> None:
    engine = engine_model()
    thinking = Thinking(22, 23, opened=True, budget=4)
    handle = add(engine, [1, 2, 3], thinking=thinking)
    engine.run()
    tokens = engine.heard[handle].tokens
    assert tokens[4] == 23
    assert len(engine.device.plans) < len(tokens)


def test_rows_without_forced_tokens_are_left_alone(engine_model: MakeEngine) -> None:
    engine = engine_model()
    engine.add([1, 2, 3], max_tokens=8)
    engine.add([1, 2, 3], max_tokens=8, structured_outputs="one")
    engine.run()
    rows = engine.scheduler.rows
    assert np.count_nonzero(rows.forced) == 0
