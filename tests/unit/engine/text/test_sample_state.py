"""One sample's state over deltas: text, ids, offsets and its end."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.request import FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.text.sample_state import SampleState


def state(tokenizer: Any, **params: Any) -> SampleState:
    return SampleState(4, SamplingParams(**{"max_tokens": 50, **params}), tokenizer)


def test_an_update_holds_what_is_new_and_the_state_the_whole(byte_tokenizer) -> None:
    sample = state(byte_tokenizer)
    ids = byte_tokenizer.encode("hello world test")
    updates = [sample.push(SampleDelta(0, [token])) for token in ids]
    assert [update.index for update in updates] == [4] * len(ids)
    assert "".join(update.text for update in updates) == sample.text == "hello world test"
    assert [token for update in updates for token in update.token_ids] == sample.token_ids == ids
    assert not sample.finished


def test_bytes_of_a_character_wait_for_the_rest(byte_tokenizer) -> None:
    sample = state(byte_tokenizer)
    updates = [sample.push(SampleDelta(0, [t])).text for t in byte_tokenizer.encode("a😅b")]
    assert "".join(updates) == "a😅b"
    assert "" in updates
    assert not any("\ufffd" in text for text in updates)


def test_offsets_point_to_where_each_tokens_text_begins(byte_tokenizer) -> None:
    sample = state(byte_tokenizer, logprobs=0)
    ids = byte_tokenizer.encode("hello world")
    entries = [LogprobEntry(token, -0.5, 1, [], []) for token in ids]
    first = sample.push(SampleDelta(0, ids[:1], logprobs=entries[:1]))
    rest = sample.push(SampleDelta(0, ids[1:], logprobs=entries[1:]))
    assert first.text_offsets + rest.text_offsets == sample.text_offsets
    pieces = [byte_tokenizer.token_text(token) for token in ids]
    assert sample.text_offsets == [len("".join(pieces[:at])) for at in range(len(ids))]
    assert sample.cumulative_logprob == pytest.approx(-0.5 * len(ids))


def test_nothing_follows_the_end(byte_tokenizer) -> None:
    sample = state(byte_tokenizer)
    ids = byte_tokenizer.encode("hello")
    last = sample.push(SampleDelta(0, ids, FinishReason.LENGTH))
    assert (last.text, last.finish_reason, sample.finished) == ("hello", FinishReason.LENGTH, True)
    late = sample.push(SampleDelta(0, ids))
    assert (late.text, late.token_ids, late.finish_reason) == ("", [], None)
    assert sample.token_ids == ids


def test_a_stop_string_ends_it_before_the_core_knows(byte_tokenizer) -> None:
    sample = state(byte_tokenizer, stop=["world"])
    update = sample.push(SampleDelta(0, byte_tokenizer.encode("hello world test")))
    assert update.stopped_by_string
    assert (sample.text, sample.stop_reason) == ("hello ", "world")
    assert len(sample.token_ids) < len(byte_tokenizer.encode("hello world test"))


def test_an_errors_sentence_comes_with_the_end(byte_tokenizer) -> None:
    sample = state(byte_tokenizer)
    update = sample.push(SampleDelta(0, [], FinishReason.ERROR, error="the step failed"))
    assert (update.finish_reason, update.error) == (FinishReason.ERROR, "the step failed")


def test_without_detokenising_there_are_ids_and_no_text(byte_tokenizer) -> None:
    sample = state(byte_tokenizer, detokenize=False)
    update = sample.push(SampleDelta(0, [50, 51], FinishReason.LENGTH))
    assert (update.text, sample.text, sample.token_ids) == ("", "", [50, 51])
