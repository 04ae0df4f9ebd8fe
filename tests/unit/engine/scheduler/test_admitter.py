"""Who leaves the queue, with which rows and cached blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
PROMPT = [5 + i % 19 for i in range(30)]


def test_a_cached_prefix_is_not_computed_again(engine_model: Make) -> None:
    engine = engine_model(budget=64)
    engine.add(PROMPT[:18], max_tokens=1)
    engine.run()
    again = engine.add(PROMPT[:18], max_tokens=1)
    engine.run()
    init = engine.device.plans[-1].inits[0]
    assert (init.num_computed, init.num_prompt) == (16, 18)
    assert engine.device.plans[-1].num_new.tolist() == [2]
    assert engine.heard[again].num_cached == 16
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (36, 16)


def test_a_request_waits_for_rows_for_all_its_samples(engine_model: Make) -> None:
    engine = engine_model(rows=3)
    engine.add([5] * 3, max_tokens=6)
    wide = engine.add([6] * 3, n=3, max_tokens=2)
    engine.step()
    assert engine.scheduler.by_handle[wide].state.name == "WAITING"
    narrow = engine.add([7] * 3, max_tokens=2)
    engine.step()
    assert engine.scheduler.by_handle[narrow].state.name == "WAITING", "it is not overtaken"
    engine.run()


def test_samples_own_their_rows_from_the_start(engine_model: Make) -> None:
    engine = engine_model(rows=4, budget=4)
    engine.add(PROMPT[:10], n=3, max_tokens=2)
    engine.step()
    assert engine.scheduler.rows.num_free == 1
    engine.run()


def test_blocks_in_use_elsewhere_count_as_there(engine_model: Make) -> None:
    """11 blocks: the first holds 6 of them, which the second shares but for its last."""
    engine = engine_model(num_blocks=(12,), max_model_len=32, rows=2, budget=64)
    engine.add(PROMPT[:24], max_tokens=4)
    engine.step()
    engine.step()
    engine.add(PROMPT[:26], max_tokens=2)
    engine.step()
    assert len(engine.scheduler.waiting) == 0
    assert engine.device.plans[-1].inits[0].num_computed == 24
    engine.run()


@pytest.mark.parametrize(("blocks", "computed"), [(3, 8), (4, 10)])
def test_a_tail_is_copied_if_there_is_a_block_besides(
    engine_model: Make, blocks: int, computed: int
) -> None:
    """Its source counts as available until the copy takes it out of the pool for a step."""
    engine = engine_model(num_blocks=(blocks + 1,), max_model_len=12)
    first = engine.scheduler.by_handle[engine.add(PROMPT[:10], max_tokens=1)]
    engine.step()
    engine.scheduler.commits.keep_tail(first)
    engine.run()
    engine.add(PROMPT[:11], max_tokens=1)
    engine.run()
    assert engine.device.plans[-1].inits[0].num_computed == computed
