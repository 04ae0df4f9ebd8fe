"""n > 1: one prefill, then copy-on-write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
PROMPT = list(range(1, 18))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 15, 16, 17])
def test_samples_of_one_prefill_equal_lone_runs(
    engine_model: Make, length: int, overlap: bool
) -> None:
    engine = engine_model(overlap=overlap)
    engine.add(PROMPT[:length], n=4, max_tokens=11)
    engine.run()
    assert engine.counters.forks == 3
    assert engine.counters.computed_tokens == length + 4 * 10
    assert len({tuple(heard.tokens) for heard in engine.heard.values()}) == 4


@pytest.mark.parametrize("length", [8, 9])
def test_only_a_partial_block_is_copied(engine_model: Make, length: int) -> None:
    engine = engine_model()
    engine.add(PROMPT[:length], n=3, max_tokens=4)
    engine.step()
    forked = engine.device.plans[0].forks
    tables = [fork.block_tables[0].tolist() for fork in forked]
    engine.run()
    copies = [len(plan.copies[0]) for plan in engine.device.plans if plan.copies]
    assert copies == ([2] if length % 4 else [])
    assert tables[0][:2] == tables[1][:2], "full blocks are shared"
    if length % 4:
        assert tables[0][2] != tables[1][2]


def test_a_sample_that_ends_with_its_first_token_copies_nothing(engine_model: Make) -> None:
    engine = engine_model()
    engine.add(PROMPT[:6], n=3, max_tokens=1)
    engine.run()
    assert engine.counters.steps == 1


def test_forks_wait_for_blocks_while_others_run(engine_model: Make) -> None:
    engine = engine_model(num_blocks=(13,), max_model_len=40, rows=5)
    engine.add([7] * 9, max_tokens=20)
    engine.step()
    engine.add(PROMPT[:14], n=4, max_tokens=3)
    engine.run()
    assert engine.counters.forks == 3


def test_samples_that_share_all_blocks_need_none_to_fork(engine_model: Make) -> None:
    """8 blocks: of six that the four samples were let in with, others took two meanwhile."""
    engine = engine_model(num_blocks=(9,), max_model_len=32, rows=6, chunk=4)
    for token in (5, 6):
        engine.add([token] * 3, max_tokens=6)
    engine.step()
    engine.add(PROMPT[:8], n=4, max_tokens=3)
    engine.step()
    assert engine.kv.num_available == 5
    engine.step()
    assert engine.kv.num_available == 2
    assert engine.counters.forks == 3
    engine.run()


def test_two_unforked_leads_in_a_small_pool_both_end(engine_model: Make) -> None:
    """Both are prefilled up to the last token, and neither finds the blocks to fork."""
    engine = engine_model(num_blocks=(13,), max_model_len=40, rows=8, budget=8, chunk=2)
    engine.add(PROMPT[:14], n=4, max_tokens=6)
    engine.step()
    engine.add([9, *PROMPT[:14]], n=4, max_tokens=6)
    engine.run()
    assert engine.counters.forks >= 6
    assert engine.counters.preemptions > 0


@pytest.fixture
def preempted_lead(engine_model: Make) -> tuple[Any, Any]:
    """An engine whose unforked lead (three samples) was preempted by an earlier request."""
    engine = engine_model(num_blocks=(17,), rows=6, budget=6, chunk=1)
    first = engine.add([5] * 20, max_tokens=44)
    engine.step_until(lambda: len(engine.heard[first].tokens) >= 12)
    lead = engine.scheduler.by_handle[engine.add([8] * 18, n=3, max_tokens=8)]
    engine.step()
    assert engine.scheduler.rows.num_free == 6 - 1 - 3
    engine.step_until(lambda: lead.num_preemptions)
    return engine, lead


def test_an_unforked_lead_is_preempted_with_its_siblings_rows(
    preempted_lead: tuple[Any, Any],
) -> None:
    engine, lead = preempted_lead
    engine.step()
    assert engine.scheduler.rows.num_free == 5
    assert len(lead.siblings) == 2
    engine.run()
    assert engine.counters.forks == 2


def test_forked_siblings_are_preempted_one_by_one(engine_model: Make) -> None:
    engine = engine_model(num_blocks=(18,), rows=4)
    engine.add(PROMPT, n=4, max_tokens=40)
    engine.run()
    assert engine.counters.preemptions >= 2
    assert engine.counters.forks == 3


@pytest.mark.parametrize("sample", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_one_of_three_samples_is_ended(engine_model: Make, sample: int, steps: int) -> None:
    """While waiting, half prefilled, forked in flight, and decoding."""
    engine = engine_model(budget=8)
    handle = engine.add(PROMPT[:14], n=3, max_tokens=9)
    for _ in range(steps):
        engine.step()
    forked = bool(engine.counters.forks)
    engine.end(handle + sample)
    assert engine.scheduler.waiting.num_tokens >= 0
    engine.run()
    ended = [h for h, heard in engine.heard.items() if heard.finish is not None]
    others = [handle + i for i in range(3) if i != sample]
    # Nothing has begun for the siblings of a lead that ends before the fork.
    assert ended == ([] if sample == 0 and not forked else others)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("sample", [0, 1])
def test_a_preempted_unforked_lead_or_sibling_is_ended(
    preempted_lead: tuple[Any, Any], steps: int, sample: int
) -> None:
    engine, lead = preempted_lead
    for _ in range(steps):
        engine.step()
    engine.end(lead.handle + sample)
    engine.run()
    assert engine.counters.forks == sample
    assert len(engine.heard[lead.handle + 2].tokens) == (8 if sample else 0)


def test_the_prompt_is_reported_once_though_siblings_are_preempted(engine_model: Make) -> None:
    engine = engine_model(num_blocks=(18,), rows=4)
    engine.add(PROMPT, n=4, max_tokens=40, prompt_logprobs=1)
    engine.run()
    assert engine.counters.preemptions >= 2
    reports = [len(heard.prompt_positions) for heard in engine.heard.values()]
    assert reports == [16, 0, 0, 0]


def test_a_waiting_request_ends_with_all_its_samples(engine_model: Make) -> None:
    engine = engine_model(rows=4)
    running = engine.add([3] * 5, n=4, max_tokens=10)
    waiting = engine.add([4] * 5, n=4, max_tokens=10)
    engine.step()
    engine.end(waiting)
    assert len(engine.scheduler.waiting) == engine.scheduler.waiting.num_tokens == 0
    assert set(engine.scheduler.by_handle) == set(range(running, running + 4))
    engine.run()


def test_blocks_a_fork_still_copies_are_not_handed_on(engine_model: Make) -> None:
    """The lead ends with its first token while the next step, which copies its block, runs."""
    engine = engine_model(num_blocks=(6,), max_model_len=16, rows=2)
    probe = engine.add(PROMPT[:6], n=2, max_tokens=4)
    first = engine.lone(engine.heard[probe].request)[0][0]
    engine.run()
    handle = engine.add(PROMPT[:6], n=2, max_tokens=4, stop_token_ids=[first], seed=1000)
    for _ in range(3):
        engine.add([2] * 7, max_tokens=4)
    engine.run()
    assert engine.heard[handle].tokens == [first]
    assert len(engine.heard[handle + 1].tokens) > 1
