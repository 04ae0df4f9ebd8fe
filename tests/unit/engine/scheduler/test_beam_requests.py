"""Beam searches over a scheduler that knows none, beside ordinary requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
PROMPT = list(range(1, 18))


def add_search(engine: Any, prompt: list[int], width: int = 3, **how: Any) -> int:
    handle: int = engine.add(prompt, n=width, use_beam_search=True, **how)
    return handle


def news_of(engine: Any) -> list[Any]:
    found = []
    while not engine.loop.idle:
        news = engine.step()
        if news is not None and (news.deltas or len(news.handles)):
            found.append(news)
    return found


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 17])
def test_a_search_equals_a_lone_one(
    engine_model: Make, length: int, width: int, overlap: bool, caching: bool
) -> None:
    engine = engine_model(overlap=overlap, caching=caching)
    add_search(engine, PROMPT[:length], width, max_tokens=13, eos=[0])
    engine.run()
    assert len({tuple(heard.tokens) for heard in engine.heard.values()}) == width


def test_a_step_computes_one_token_of_each_beam(engine_model: Make) -> None:
    engine = engine_model()
    add_search(engine, PROMPT, max_tokens=9)
    engine.run()
    first, *others = engine.device.plans
    assert first.num_tokens == len(PROMPT)
    assert [plan.num_new.tolist() for plan in others] == [[1, 1, 1]] * 8
    assert all(plan.num_decodes == 3 for plan in others), "a captured decode, on GPUs"


def test_beams_that_go_on_keep_their_rows(engine_model: Make) -> None:
    """Only further continuations of a beam begin anew, and only with the block they end in."""
    engine = engine_model()
    add_search(engine, PROMPT, max_tokens=9)
    engine.run()
    _, widened, *others = engine.device.plans
    assert len(widened.inits) == 2, "the prompt's row is the first beam's"
    assert sum(len(plan.inits) for plan in others) < 3 * len(others)
    assert all(
        len(init.token_ids) - init.num_computed == 1 for plan in others for init in plan.inits
    )
    assert any(plan.replaced is not None for plan in others), "another than the sampled token"


def test_a_search_misses_one_step_while_its_candidates_are_in_flight(engine_model: Make) -> None:
    """With overlap it takes part in every second step; the others in every one."""
    engine = engine_model(rows=4, num_blocks=(64,))
    add_search(engine, PROMPT[:5], max_tokens=10)
    engine.add(PROMPT[:6], max_tokens=21)
    engine.run()
    beams = [plan.step_id for plan in engine.device.plans if plan.top_logprobs >= 0]
    assert len(engine.device.plans) == 21
    assert beams == list(range(0, 20, 2))


def test_without_overlap_a_search_takes_part_in_every_step(engine_model: Make) -> None:
    engine = engine_model(overlap=False)
    add_search(engine, PROMPT[:5], max_tokens=10)
    engine.run()
    assert engine.counters.steps == 10


def test_a_search_is_one_request_of_the_latency_metrics(engine_model: Make) -> None:
    engine = engine_model(rows=4, num_blocks=(64,))
    add_search(engine, PROMPT[:5], max_tokens=10)
    engine.run()
    (prompt,) = engine.scheduler.ended.take()
    times = prompt.times
    assert 0 < times.queued <= times.started <= times.first_token <= times.ended


def test_a_search_keeps_its_place_in_the_queue(engine_model: Make) -> None:
    """What waits for a row when a search begins to need all of them waits for its end."""
    engine = engine_model(rows=3, num_blocks=(64,))
    search = add_search(engine, PROMPT[:5], max_tokens=10)
    later = [engine.add([7] * 5, max_tokens=2) for _ in range(4)]
    engine.step_until(lambda: engine.heard[search].finish)
    assert [len(engine.heard[handle].tokens) for handle in later] == [2, 2, 0, 0]
    engine.run()


def test_the_beams_of_a_step_wait_until_there_are_rows_for_all(engine_model: Make) -> None:
    engine = engine_model(rows=3, num_blocks=(64,))
    others = [engine.add([7] * 5, max_tokens=tokens) for tokens in (9, 15)]
    search = add_search(engine, PROMPT[:5], max_tokens=5)
    engine.step_until(lambda: engine.heard[search].finish)
    assert all(engine.heard[handle].finish for handle in others)
    widths = [len(plan.rows) for plan in engine.device.plans if plan.top_logprobs >= 0]
    assert widths == [3, 3, 3, 3, 3], "the first step's two others, then three beams each"
    engine.run()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("windows", [(None,), (6,), (None, 6)])
def test_a_search_ends_in_a_pool_for_a_single_beam(
    engine_model: Make, windows: tuple[int | None, ...], overlap: bool
) -> None:
    """Beams that do not fit beside each other run one after the other."""
    engine = engine_model(
        windows=windows,
        num_blocks=(11,) * len(windows),
        max_model_len=36,
        budget=8,
        overlap=overlap,
    )
    add_search(engine, PROMPT, max_tokens=19)
    engine.add([5] * 9, max_tokens=20)
    engine.run()
    assert max(len(plan.sample_rows) for plan in engine.device.plans) > 1


def test_a_finished_search_tells_all_beams_at_once(engine_model: Make) -> None:
    engine = engine_model()
    handle = add_search(engine, [1, 2, 3], max_tokens=4, client=1)
    (told,) = news_of(engine)
    deltas = [delta for client, delta in told.deltas if client == 1]
    assert [delta.handle for delta in deltas] == [handle, handle + 1, handle + 2]
    scores = [delta.cumulative_logprob for delta in deltas]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("beam", [0, 2])
def test_a_search_that_its_client_left_tells_nothing_and_holds_nothing(
    engine_model: Make, steps: int, beam: int
) -> None:
    engine = engine_model()
    handle = add_search(engine, [1, 2, 3], max_tokens=9)
    for _ in range(steps):
        engine.step()
    engine.end(handle + beam)
    assert len(engine.loop.beams) == 0
    assert not news_of(engine)
    engine.run()


def test_two_searches_keep_apart(engine_model: Make) -> None:
    engine = engine_model(rows=5)
    for prompt in (PROMPT[:5], PROMPT[:9]):
        add_search(engine, prompt, max_tokens=7, client=len(prompt))
    engine.step()
    engine.step()
    engine.end(0)
    engine.run()


@pytest.mark.parametrize("windows", [(None,), (6,), (None, 10)])
def test_beams_whose_last_block_is_gone_compute_it_again(
    engine_model: Make, windows: tuple[int | None, ...]
) -> None:
    engine = engine_model(windows=windows, num_blocks=(64,) * len(windows), budget=128)
    search = add_search(engine, PROMPT, max_tokens=12)
    while engine.heard[search].finish is None:
        engine.kv.reset_cache()
        engine.step()
    begun = [plan for plan in engine.device.plans if plan.inits]
    assert len(begun) > 1, "some beams fork"
    assert min(plan.num_tokens for plan in begun) >= len(PROMPT)
    engine.run()
