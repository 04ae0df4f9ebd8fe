"""What clients hear of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvasir_engine.request import FinishReason

Make = Callable[..., Any]


def news_of(engine: Any) -> list[Any]:
    found = []
    while not engine.loop.idle:
        news = engine.step()
        if news is not None:
            found.append(news)
    return found


def test_plain_tokens_travel_packed_between_the_first_and_the_last(engine_model: Make) -> None:
    engine = engine_model()
    handle = engine.add([1, 2, 3], max_tokens=5, client=2)
    told = news_of(engine)
    assert [news.handles.tolist() for news in told] == [[], [handle], [handle], [handle], []]
    first, last = told[0].deltas[0], told[-1].deltas[0]
    assert (first[0], first[1].seed, first[1].num_cached_tokens) == (2, 1000 + handle, 0)
    assert (last[1].finish_reason, last[1].seed) == (FinishReason.LENGTH, None)


def test_a_sample_with_logprobs_never_travels_packed(engine_model: Make) -> None:
    engine = engine_model()
    engine.add([1, 2, 3], max_tokens=4, logprobs=2)
    told = news_of(engine)
    assert all(len(news.handles) == 0 for news in told)
    entries = [news.deltas[0][1].logprobs for news in told]
    assert [len(each[0].top_ids) for each in entries] == [2, 2, 2, 2]
