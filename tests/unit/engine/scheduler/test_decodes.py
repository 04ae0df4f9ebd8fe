"""Which rows decode in a step, as its plans show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]


def test_all_ready_rows_decode_before_any_chunk(engine_model: Make) -> None:
    engine = engine_model(rows=4, budget=8, chunk=4)
    for start in range(3):
        engine.add([5 + start] * 2, max_tokens=12)
    engine.step()
    engine.add([9] * 12, max_tokens=1)
    engine.run()
    plan = engine.device.plans[1]
    assert plan.num_decodes == 3
    assert sorted(plan.rows[:3].tolist()) == sorted(engine.device.plans[0].rows.tolist())
    assert plan.num_new.tolist() == [1, 1, 1, 4]


def test_a_block_is_appended_when_the_last_one_is_full(engine_model: Make) -> None:
    """Blocks of 4: a prompt of 3 needs its second block for the fifth token."""
    engine = engine_model(rows=1)
    engine.add([5, 6, 7], max_tokens=8)
    engine.run()
    decodes = [plan for plan in engine.device.plans if plan.num_decodes]
    appended = {int(p.starts[0]): p.appends[0].blocks.size for p in decodes if p.appends}
    assert appended == {4: 1, 8: 1}


def test_a_row_whose_length_is_reached_is_not_computed_again(engine_model: Make) -> None:
    """Limits are known ahead: no step is launched for a token that cannot be."""
    engine = engine_model(rows=2)
    engine.add([5] * 3, max_tokens=1)
    engine.add([6] * 3, max_tokens=4)
    engine.run()
    rows = [plan.rows.tolist() for plan in engine.device.plans]
    assert [len(each) for each in rows] == [2, 1, 1, 1]


def test_the_latest_gives_way_when_blocks_are_short(engine_model: Make) -> None:
    engine = engine_model(num_blocks=(13,), max_model_len=44, rows=2)
    first = engine.add([5] * 16, max_tokens=20)
    second = engine.add([6] * 16, max_tokens=20)
    engine.step_until(lambda: engine.counters.preemptions)
    states = [engine.scheduler.by_handle[handle].state.name for handle in (first, second)]
    assert states[0] == "RUNNING"
    assert states[1] != "RUNNING"
    engine.run()
