"""What the scheduler counts, times and tells of its load."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvasir_engine.request import EngineRequest, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.counters import SchedulerLoad
from kvasir_engine.scheduler.step_results import StepNews

Make = Callable[..., Any]
PROMPT = list(range(1, 22))


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the monotonic clock is one second after the last."""
    clock = itertools.count(1.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))


def test_totals_of_a_run(engine_model: Make) -> None:
    engine = engine_model(budget=8, rows=2)
    engine.add(PROMPT[:10], max_tokens=4)
    engine.add(PROMPT[10:14], max_tokens=3)
    engine.add(PROMPT[14:16], max_tokens=1)
    engine.run()
    counters = engine.counters
    assert counters.max_queued == 3
    assert counters.generated_tokens == 4 + 3 + 1
    # A chunk that is one token long is computed as a decode is.
    assert counters.computed_tokens == (10 + 3) + (4 + 2) + 2
    assert counters.prefill_tokens == 10 + 4 + 2
    assert counters.steps == len(engine.device.plans)
    assert (counters.preemptions, counters.forks, counters.failed_steps) == (0, 0, 0)


def test_of_a_mixed_step_the_decodes_are_no_prefill(engine_model: Make) -> None:
    engine = engine_model()
    engine.add(PROMPT[:3], max_tokens=8)
    engine.step()
    before = engine.counters.prefill_tokens
    engine.add(PROMPT[3:13], max_tokens=2)
    engine.step()
    assert engine.device.plans[-1].num_decodes == 1
    assert engine.counters.prefill_tokens == before + 10
    engine.run()


def test_load_counts_rows_queue_tokens_and_blocks(engine_model: Make) -> None:
    engine = engine_model(rows=2, budget=8, num_blocks=(41,))
    assert engine.scheduler.load() == SchedulerLoad(0, 0, 0, 0.0)
    engine.add(PROMPT[:12], max_tokens=4)
    engine.add(PROMPT[:3], n=2, max_tokens=4)
    assert engine.scheduler.load() == SchedulerLoad(0, 2, 15, 0.0)
    engine.step()
    load = engine.scheduler.load()
    assert (load.running, load.waiting, load.inflight_tokens) == (1, 1, 3 + 3)
    assert load.kv_usage == 2 / 40
    engine.run()
    assert engine.scheduler.load() == SchedulerLoad(0, 0, 0, 0.0)


def test_there_is_work_until_all_has_come_back(engine_model: Make) -> None:
    engine = engine_model()
    assert not engine.scheduler.has_work
    handle = engine.add(PROMPT, max_tokens=9)
    assert engine.scheduler.has_work
    engine.step()
    engine.step()
    assert engine.scheduler.has_work
    engine.end(handle)
    assert engine.scheduler.has_work, "its last step is in flight"
    engine.run()
    assert not engine.scheduler.has_work


def test_the_clients_of_one_process_end_together(engine_model: Make) -> None:
    engine = engine_model()
    theirs = [engine.add(PROMPT[:4], max_tokens=9, client=client) for client in (0, 1, 0)]
    engine.step()
    for handle in (theirs[0], theirs[2]):
        engine.heard[handle].ended_by_client = True
    engine.scheduler.end_client(0)
    assert list(engine.scheduler.by_handle) == [theirs[1]]
    engine.run()
    assert len(engine.heard[theirs[1]].tokens) == 9


def test_the_times_of_a_sample_are_in_order(engine_model: Make, ticking: None) -> None:
    engine = engine_model(rows=1)
    handle = engine.add(PROMPT[:4], max_tokens=3)
    waits = engine.add(PROMPT[:3], max_tokens=3)
    sequences = [engine.scheduler.by_handle[each] for each in (handle, waits)]
    times = sequences[0].times
    assert times.queued > 0
    assert (times.started, times.first_token, times.ended) == (0, 0, 0)
    engine.run()
    for each in (it.times for it in sequences):
        assert each.queued < each.started < each.first_token < each.ended
    assert times.ended < sequences[1].times.started


def test_a_preempted_sample_started_once(engine_model: Make, ticking: None) -> None:
    engine = engine_model(num_blocks=(17,), rows=2)
    engine.add([5] * 30, max_tokens=30)
    victim = engine.scheduler.by_handle[engine.add([6] * 25, max_tokens=30)]
    engine.step()
    started = victim.times.started
    engine.run()
    assert victim.num_preemptions == 1
    assert victim.times.started == started


def test_what_ended_after_a_token_is_told_once(engine_model: Make) -> None:
    engine = engine_model()
    ended = engine.add(PROMPT[:4], max_tokens=2)
    engine.add(PROMPT[:4], max_tokens=9)
    silent = engine.add(PROMPT[4:8], max_tokens=9)
    engine.end(silent)
    engine.step_until(lambda: not engine.heard[ended].going)
    assert [each.handle for each in engine.scheduler.ended.take()] == [ended]
    assert engine.scheduler.ended.take() == []
    engine.run()
    assert len(engine.scheduler.ended.take()) == 1


def test_who_is_postponed_comes_after_all_others(engine_model: Make) -> None:
    engine = engine_model(rows=1)
    first = engine.scheduler.by_handle[engine.add(PROMPT[:4], max_tokens=9)]
    second = engine.scheduler.by_handle[engine.add(PROMPT[:5], max_tokens=9)]
    engine.scheduler.postpone(first)
    assert first.order > second.order
    engine.run()


def test_places_are_reserved_behind_all_that_wait(engine_model: Make) -> None:
    scheduler = engine_model().scheduler
    assert [scheduler.reserve_places(count) for count in (2, 1, 3, 1)] == [0, 2, 3, 6]


def news(handles: list[int], tokens: list[int], deltas: list[int]) -> StepNews:
    def array(values: list[int]) -> Any:
        return np.array(values, dtype=np.int32)

    clients = [handle + 100 for handle in handles]
    told = [(handle + 100, SampleDelta(handle, [0])) for handle in deltas]
    return StepNews(array(handles), array(tokens), array(clients), told)


def test_news_of_two_steps_keep_the_order_of_each_sample() -> None:
    both = news([1, 2], [11, 12], [3, 4])
    both.extend(news([1, 3, 5], [21, 23, 25], [2]))
    assert both.handles.tolist() == [1, 2, 1, 5]
    assert both.tokens.tolist() == [11, 12, 21, 25]
    assert both.clients.tolist() == [101, 102, 101, 105]
    told = [(client, delta.handle, delta.token_ids) for client, delta in both.deltas]
    assert told == [(103, 3, [0]), (104, 4, [0]), (103, 3, [23]), (102, 2, [0])]
    empty = StepNews.empty()
    empty.extend(both)
    assert empty.tokens.tolist() == both.tokens.tolist()


def test_seeds_are_drawn_from_63_bits(engine_model: Make) -> None:
    scheduler = engine_model().scheduler
    for handle in range(40):
        scheduler.add(EngineRequest("r", handle, [1], SamplingParams()))
    seeds = [scheduler.by_handle[handle].sampling.seed for handle in range(40)]
    assert 2**62 < max(seeds) < 2**63
    assert min(seeds) >= 0
