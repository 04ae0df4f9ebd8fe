"""Beam searches in the scheduler, beside ordinary rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
PROMPT = list(range(1, 18))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 17])
def test_a_search_equals_a_lone_one(
    engine_model: Make, length: int, width: int, overlap: bool
) -> None:
    engine = engine_model(overlap=overlap)
    engine.add(PROMPT[:length], n=width, use_beam_search=True, max_tokens=13, eos=[0])
    engine.run()
    assert len({tuple(heard.tokens) for heard in engine.heard.values()}) == width


def test_a_group_sits_out_exactly_while_its_candidates_are_in_flight(engine_model: Make) -> None:
    """With overlap it takes part in every second step; the others in every one."""
    engine = engine_model(rows=4, num_blocks=(64,))
    beams = engine.add(PROMPT[:5], n=3, use_beam_search=True, max_tokens=10)
    ordinary = engine.add(PROMPT[:6], max_tokens=21)
    rows: dict[int, set[int]] = {ordinary: set(), beams: set()}
    steps: dict[int, list[int]] = {ordinary: [], beams: []}
    engine.step()
    for handle in rows:
        sequence = engine.scheduler.by_handle[handle]
        group = sequence.beam_group
        rows[handle] = {m.row for m in group.members} if group else {sequence.row}
    engine.run()
    for plan in engine.device.plans:
        for handle, owned in rows.items():
            if owned & set(plan.rows.tolist()):
                steps[handle].append(plan.step_id)
    assert steps[ordinary] == list(range(21))
    assert steps[beams] == list(range(0, 20, 2))


def test_a_search_is_one_request_of_the_latency_metrics(engine_model: Make) -> None:
    engine = engine_model(rows=4, num_blocks=(64,))
    engine.add(PROMPT[:5], n=3, use_beam_search=True, max_tokens=10)
    engine.run()
    (lead,) = engine.scheduler.take_ended()
    times = lead.times
    assert 0 < times.queued <= times.started <= times.first_token <= times.ended


def test_without_overlap_a_group_takes_part_in_every_step(engine_model: Make) -> None:
    engine = engine_model(overlap=False)
    engine.add(PROMPT[:5], n=3, use_beam_search=True, max_tokens=10)
    engine.run()
    assert engine.counters.steps == 10


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("blocks", [28, 30, 34])
def test_a_group_takes_its_blocks_from_rows_outside_the_step(
    engine_model: Make, blocks: int, overlap: bool
) -> None:
    """It arrived first, so that later rows give way: never one that already decodes in the step."""
    engine = engine_model(num_blocks=(blocks,), rows=5, budget=64, overlap=overlap)
    engine.add(PROMPT[:5], n=3, use_beam_search=True, max_tokens=24)
    engine.add([5] * 20, max_tokens=30)
    engine.add([6] * 21, max_tokens=30)
    engine.run()
    assert engine.counters.preemptions > 0
