from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_engine.request import (
    EngineRequest,
    FinishReason,
    LogprobEntry,
    Resume,
    SampleDelta,
)
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.text.output_assembler import OutputAssembler

EOS = 1


def request(resume: Resume | None = None, **params: Any) -> EngineRequest:
    return EngineRequest(
        request_id="r",
        handle=10,
        prompt_token_ids=[0, 50, 51],
        params=SamplingParams(**{"max_tokens": 100, **params}),
        eos_token_ids=[EOS],
        resume=resume,
    )


def entry(token_id: int) -> LogprobEntry:
    return LogprobEntry(token_id, -0.5, 1, [token_id, 60], [-0.5, -1.0])


def run(assembler: OutputAssembler, deltas: list[SampleDelta]) -> list[Any]:
    return [assembler.push(delta) for delta in deltas]


def test_eos_counts_as_a_token_but_has_no_text(byte_tokenizer):
    assembler = OutputAssembler(request(), byte_tokenizer, "p")
    ids = [*byte_tokenizer.encode("hello"), EOS]
    assembler.push(SampleDelta(10, ids, FinishReason.STOP, seed=7, num_cached_tokens=2))
    output = assembler.output()
    assert output.finished
    assert output.outputs[0].text == "hello"
    assert output.outputs[0].token_ids == ids
    assert output.outputs[0].finish_reason == "stop"
    assert (assembler.seed, output.num_cached_tokens) == (7, 2)


@pytest.mark.parametrize(("include", "text"), [(False, "hello"), (True, "hello world")])
def test_a_stop_tokens_text_is_shown_only_on_request(byte_tokenizer, include, text):
    assembler = OutputAssembler(
        request(include_stop_str_in_output=include, stop_token_ids=[999]), byte_tokenizer
    )
    ids = [*byte_tokenizer.encode("hello"), *byte_tokenizer.encode(" world")]
    assert len(ids) == 2
    assembler.push(SampleDelta(10, ids, FinishReason.STOP, stop_reason=ids[-1]))
    assert assembler.output().outputs[0].text == text
    assert assembler.output().outputs[0].stop_reason == ids[-1]


def test_a_stop_string_cuts_text_ids_and_logprobs(byte_tokenizer):
    assembler = OutputAssembler(request(stop=["END"], logprobs=1), byte_tokenizer)
    ids = byte_tokenizer.encode("hello END of it")
    full = SampleDelta(10, ids, logprobs=[entry(i) for i in ids])
    update = assembler.push(full)
    assert update.text == "hello "
    assert update.stopped_by_string
    assert (update.finish_reason, update.stop_reason) == (FinishReason.STOP, "END")
    kept = byte_tokenizer.decode(update.token_ids)
    assert kept.endswith("END")
    assert not byte_tokenizer.decode(update.token_ids[:-1]).endswith("END")
    assert len(update.logprobs) == len(update.token_ids) == assembler.num_output_tokens
    assert assembler.samples[0].cumulative_logprob == -0.5 * len(update.token_ids)
    assert assembler.push(SampleDelta(10, [60], FinishReason.ABORT)).token_ids == []


def test_a_stop_string_in_the_last_delta_needs_no_word_to_the_core(byte_tokenizer):
    assembler = OutputAssembler(request(stop=["END"]), byte_tokenizer)
    ids = byte_tokenizer.encode("x END")
    update = assembler.push(SampleDelta(10, ids, FinishReason.LENGTH))
    assert not update.stopped_by_string
    assert (update.finish_reason, update.text) == (FinishReason.STOP, "x ")


def test_min_tokens_lets_a_stop_string_pass(byte_tokenizer):
    ids = byte_tokenizer.encode("END END")
    first = next(n for n in range(1, 9) if byte_tokenizer.decode(ids[:n]) == "END")
    assembler = OutputAssembler(request(stop=["END"], min_tokens=first), byte_tokenizer)
    for token in ids:
        assembler.push(SampleDelta(10, [token]))
    assert assembler.output().outputs[0].text == "END "
    assert assembler.finished


def test_held_back_text_comes_out_at_the_end(byte_tokenizer):
    assembler = OutputAssembler(request(stop=["<stop>"]), byte_tokenizer)
    assert assembler.push(SampleDelta(10, byte_tokenizer.encode("a <st"))).text == "a "
    assert assembler.push(SampleDelta(10, [], FinishReason.LENGTH)).text == "<st"


def test_offsets_say_where_each_token_begins(byte_tokenizer):
    assembler = OutputAssembler(request(logprobs=0), byte_tokenizer)
    ids = byte_tokenizer.encode("hello world")
    update = assembler.push(SampleDelta(10, ids, logprobs=[entry(i) for i in ids]))
    assert update.text_offsets == [0, len("hello")]


def test_samples_answer_by_their_handles(byte_tokenizer):
    assembler = OutputAssembler(request(n=2), byte_tokenizer)
    hello = byte_tokenizer.encode("hello")
    assert assembler.push(SampleDelta(11, hello, FinishReason.LENGTH)).index == 1
    assert not assembler.finished
    assert [o.text for o in assembler.output().outputs] == ["", "hello"]


def test_prompt_logprobs_begin_with_none(byte_tokenizer):
    assembler = OutputAssembler(request(prompt_logprobs=1), byte_tokenizer)
    assembler.push(SampleDelta(10, [], prompt_logprobs=[entry(50)]))
    assembler.push(SampleDelta(10, [60], prompt_logprobs=[entry(51)]))
    found = assembler.output().prompt_logprobs
    assert found[0] is None
    assert [list(position) for position in found[1:]] == [[50, 60], [51, 60]]
    assert found[1][60].decoded_token == byte_tokenizer.token_text(60)


def test_without_a_tokenizer_there_is_no_text():
    assembler = OutputAssembler(request(), None)
    assert assembler.push(SampleDelta(10, [60, 61])).token_ids == [60, 61]
    assert assembler.output().outputs[0].text == ""


@pytest.mark.parametrize(
    ("params", "tail", "reason", "stop_reason"),
    [
        ({}, [EOS], FinishReason.STOP, None),
        ({"ignore_eos": True}, [EOS], None, None),
        ({"stop_token_ids": [70]}, [70], FinishReason.STOP, 70),
        ({"stop_token_ids": [70], "min_tokens": 9}, [70], None, None),
        ({"max_tokens": 2}, [71], FinishReason.LENGTH, None),
        ({"max_tokens": 3}, [71], None, None),
    ],
)
def test_resumed_ids_that_are_a_whole_sample_end_it(
    byte_tokenizer, params, tail, reason, stop_reason
):
    hello = byte_tokenizer.encode("hello")
    resumed = request(Resume(output_token_ids=hello + tail, sample_index=3), **params)
    assembler = OutputAssembler(resumed, byte_tokenizer)
    update = assembler.resume()
    assert (update.finish_reason, update.stop_reason, update.index) == (reason, stop_reason, 3)
    assert assembler.finished == (reason is not None)


@given(
    text=st.text("ab<stop> é😀", max_size=40),
    cuts=st.lists(st.integers(1, 5), max_size=30),
    stops=st.lists(st.sampled_from(["<stop>", "ab", "st", "é", "op> "]), max_size=2),
    min_tokens=st.integers(0, 4),
    include=st.booleans(),
)
def test_any_grouping_of_tokens_gives_the_same_sample(
    byte_tokenizer, text, cuts, stops, min_tokens, include
):
    params = {"stop": stops, "min_tokens": min_tokens, "include_stop_str_in_output": include}
    ids = byte_tokenizer.encode(text)
    whole = OutputAssembler(request(**params), byte_tokenizer)
    whole.push(SampleDelta(10, ids, FinishReason.LENGTH))
    parts = OutputAssembler(request(**params), byte_tokenizer)
    streamed, at = "", 0
    for size in cuts:
        streamed += parts.push(SampleDelta(10, ids[at : at + size])).text
        at += size
    streamed += parts.push(SampleDelta(10, ids[at:], FinishReason.LENGTH)).text
    assert parts.output() == whole.output()
    assert streamed == whole.output().outputs[0].text


@given(
    text=st.text("ab<stop> é😀", max_size=30),
    stops=st.lists(st.sampled_from(["<stop>", "ab", "é"]), max_size=2),
    data=st.data(),
)
def test_a_sample_resumed_anywhere_ends_as_the_unbroken_one(byte_tokenizer, text, stops, data):
    ids = byte_tokenizer.encode(text)
    whole = OutputAssembler(request(stop=stops), byte_tokenizer)
    sent = ""
    at = data.draw(st.integers(0, len(ids)))
    for token in ids[:at]:
        sent += whole.push(SampleDelta(10, [token])).text
    known = whole.samples[0].token_ids.copy()
    whole.push(SampleDelta(10, ids[at:], FinishReason.LENGTH))

    again = OutputAssembler(request(Resume(output_token_ids=known), stop=stops), byte_tokenizer)
    joined = sent + again.resume(len(sent)).text
    joined += again.push(SampleDelta(10, ids[at:], FinishReason.LENGTH)).text
    assert joined == whole.output().outputs[0].text
    assert again.output() == whole.output()
