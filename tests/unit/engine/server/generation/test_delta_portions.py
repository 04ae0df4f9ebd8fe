from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine_server import byte_tokenizer

from kvasir_engine.request import FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation import delta_portions
from kvasir_engine.server.generation.delta_portions import (
    PORTION_CHARS,
    PORTION_VALUES,
    portions,
    text_portions,
)
from kvasir_engine.text.sample_state import SampleState, SampleUpdate


def entry(token: int, top: int) -> LogprobEntry:
    return LogprobEntry(token, -0.5, 1, list(range(top)), [-0.5] * top)


def joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def test_a_token_alone_stays_as_it_is() -> None:
    deltas = [SampleDelta(1, [7])]
    assert list(portions(deltas)) == [deltas]


def test_many_deltas_are_divided_between_two() -> None:
    deltas = [SampleDelta(1, [at]) for at in range(PORTION_VALUES + 3)]
    first, second = portions(deltas)
    assert (len(first), len(second)) == (PORTION_VALUES, 3)
    assert first + second == deltas


@pytest.mark.parametrize(("top", "most"), [(0, 2), (20, 22), (PORTION_VALUES, PORTION_VALUES + 2)])
def test_log_probabilities_count(top: int, most: int) -> None:
    deltas = [SampleDelta(1, [at], logprobs=[entry(at, top)]) for at in range(30)]
    made = list(portions(deltas))
    assert joined(made) == deltas
    assert max(map(len, made)) == max(1, min(30, PORTION_VALUES // most))


def test_a_long_delta_is_cut_where_its_beginning_and_its_end_stay() -> None:
    ids = list(range(2 * PORTION_VALUES))
    whole = SampleDelta(
        5,
        ids,
        FinishReason.STOP,
        stop_reason=3,
        logprobs=[entry(token, 0) for token in ids],
        prompt_logprobs=[entry(1, 1)],
        num_cached_tokens=4,
        seed=9,
        times=(1.0, 2.0),
        cumulative_logprob=-1.5,
    )
    made = joined(portions([whole]))
    assert len(made) == 4
    assert joined(part.token_ids for part in made) == ids
    assert joined(part.logprobs or [] for part in made) == whole.logprobs
    assert [part.finish_reason for part in made] == [None, None, None, FinishReason.STOP]
    assert [part.stop_reason for part in made] == [None, None, None, 3]
    assert [part.seed for part in made] == [9, None, None, None]
    assert [part.num_cached_tokens for part in made] == [4, None, None, None]
    assert [part.prompt_logprobs for part in made] == [whole.prompt_logprobs, None, None, None]
    assert [part.times for part in made] == [(1.0, 2.0), None, None, None]
    assert {part.handle for part in made} == {5}
    assert {part.cumulative_logprob for part in made} == {-1.5}


def test_an_error_comes_with_the_end() -> None:
    ids = list(range(PORTION_VALUES + 1))
    first, last = chain.from_iterable(
        portions([SampleDelta(1, ids, FinishReason.ERROR, error="Broken.")])
    )
    assert (first.finish_reason, first.error) == (None, None)
    assert (last.finish_reason, last.error, last.token_ids) == (
        FinishReason.ERROR,
        "Broken.",
        [PORTION_VALUES],
    )


def test_an_end_without_tokens_stays() -> None:
    deltas = [SampleDelta(1, [], FinishReason.ABORT)]
    assert list(portions(deltas)) == [deltas]


@pytest.mark.parametrize(
    ("chars", "sizes"),
    [
        (1, [1]),
        (PORTION_CHARS, [PORTION_CHARS]),
        (2 * PORTION_CHARS + 1, [PORTION_CHARS] * 2 + [1]),
    ],
)
def test_a_resumed_text_is_divided_and_ends_once(chars: int, sizes: list[int]) -> None:
    text = "".join(chr(at) for at in range(100, 100 + chars))
    whole = SampleUpdate(3, text, [], finish_reason=FinishReason.STOP, stop_reason="x")
    made = list(text_portions(whole))
    assert [len(part.text) for part in made] == sizes
    assert "".join(part.text for part in made) == text
    assert {part.index for part in made} == {3}
    assert [part.finish_reason for part in made if part.finish_reason] == [FinishReason.STOP]
    assert (made[-1].finish_reason, made[-1].stop_reason) == (FinishReason.STOP, "x")


def test_a_resumed_end_without_text_is_told_and_nothing_is_not() -> None:
    ended = SampleUpdate(0, "", [], finish_reason=FinishReason.LENGTH)
    assert list(text_portions(ended)) == [ended]
    assert list(text_portions(SampleUpdate(0, "", []))) == []


BYTES = byte_tokenizer()


@given(
    st.lists(st.text("ab<stop>é", min_size=1, max_size=8), min_size=1, max_size=6),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([[], ["<stop>"], ["ab", "b<"]]),
)
def test_a_sample_is_the_same_however_it_is_divided(
    texts: list[str], size: int, with_logprobs: bool, stop: list[str]
) -> None:
    def deltas() -> list[SampleDelta]:
        made = [SampleDelta(0, BYTES.encode(text)) for text in texts]
        for each in made if with_logprobs else ():
            each.logprobs = [entry(token, 1) for token in each.token_ids]
        made[-1].finish_reason, made[-1].stop_reason = FinishReason.STOP, made[-1].token_ids[-1]
        return made

    params = SamplingParams(stop=stop, logprobs=1 if with_logprobs else None)
    whole, divided = SampleState(0, params, BYTES), SampleState(0, params, BYTES)
    for delta in deltas():
        whole.push(delta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_portions, "PORTION_VALUES", size)
        taken = [divided.push(part) for part in joined(portions(deltas()))]
    assert (divided.text, divided.token_ids) == (whole.text, whole.token_ids)
    assert "".join(update.text for update in taken) == whole.text
    assert (divided.finish_reason, divided.stop_reason) == (whole.finish_reason, whole.stop_reason)
    assert divided.logprobs == whole.logprobs
    assert divided.text_offsets == whole.text_offsets
    assert divided.cumulative_logprob == whole.cumulative_logprob
