"""How much of a prompt a step computes, as its plans show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
PROMPT = [5 + i % 19 for i in range(60)]


def chunks(engine: Any) -> list[list[tuple[int, int]]]:
    """(row, tokens) of each step's chunks."""
    return [
        list(
            zip(p.rows[p.num_decodes :].tolist(), p.num_new[p.num_decodes :].tolist(), strict=True)
        )
        for p in engine.device.plans
    ]


@pytest.mark.parametrize(
    ("budget", "longest", "sizes"),
    [(32, 0, [20]), (8, 0, [8, 8, 4]), (32, 7, [7, 7, 6]), (6, 7, [6, 6, 6, 2])],
)
def test_a_chunk_is_as_long_as_budget_and_threshold_allow(
    engine_model: Make, budget: int, longest: int, sizes: list[int]
) -> None:
    engine = engine_model(budget=budget, chunk=longest)
    engine.add(PROMPT[:20], max_tokens=1)
    engine.run()
    assert [size for step in chunks(engine) for _, size in step] == sizes
    assert engine.counters.chunked_prefills == len(sizes) - 1


@pytest.mark.parametrize(("policy", "preferred"), [("fcfs", 0), ("priority", 1)])
def test_who_is_served_first_gets_the_whole_chunk(
    engine_model: Make, policy: str, preferred: int
) -> None:
    engine = engine_model(budget=6, chunk=4, rows=2, policy=policy)
    handles = [engine.add(PROMPT[at : at + 20], max_tokens=1, priority=-at) for at in (0, 20)]
    engine.step()
    served = engine.scheduler.by_handle[handles[preferred]].row
    engine.run()
    for step in chunks(engine)[:4]:
        assert dict(step)[served] == 4
        assert sum(size for _, size in step) == 6


def test_a_chunk_shrinks_to_the_blocks_that_are_left(engine_model: Make) -> None:
    """Two sequences that need 10 of the 12 blocks each: the second computes into what is left."""
    engine = engine_model(num_blocks=(13,), max_model_len=44, rows=2, budget=44, chunk=16)
    engine.add(PROMPT[:36], max_tokens=4)
    engine.add(PROMPT[20:56], max_tokens=4)
    engine.run()
    sizes = [size for step in chunks(engine) for _, size in step]
    assert max(sizes) <= 16
    assert sum(sizes) >= 72


def test_a_prompt_with_siblings_samples_only_when_all_can_fork(engine_model: Make) -> None:
    engine = engine_model(budget=8, rows=3)
    engine.add(PROMPT[:12], n=3, max_tokens=2)
    engine.run()
    first, last = engine.device.plans[:2]
    assert (len(first.sample_rows), len(first.forks)) == (0, 0)
    assert (len(last.sample_rows), len(last.forks)) == (3, 2)
