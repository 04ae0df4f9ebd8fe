from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.loop_clock import LoopClock

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.request import FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.server.rpc import convert, responses

TEXT = {"text": "hello world"}


async def test_stop_strings_cut_the_text_and_free_the_sample(start_rig: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(sampling=pb.SamplingParams(stop=[" stop"]), **TEXT)
    for token in (rig.hello, rig.stop, rig.end):
        stream.send(token)
    responses = [response async for response in call]
    last = responses[-1].chunks[-1]
    assert "".join(c.text for r in responses for c in r.chunks) == "hello"
    assert (last.finish_reason, last.stop_string) == ("stop", " stop")
    assert responses[-1].usage.completion_tokens == 2
    assert rig.core.finished == [0]


async def test_samples_are_told_apart_and_logprobs_come_along(start_rig: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(
        sampling=pb.SamplingParams(n=2, logprobs=1, prompt_logprobs=1), **TEXT
    )
    entry = LogprobEntry(rig.world, -0.5, 1, [rig.world], [-0.5])
    other = LogprobEntry(rig.hello, -1.5, 2, [rig.end], [0])
    stream.send(
        rig.hello,
        prompt_logprobs=[entry],
        logprobs=[other],
    )
    stream.send(rig.end, sample=1, logprobs=[entry])
    stream.send(7, sample=1, finish_reason=FinishReason.STOP, stop_reason=7, logprobs=[entry])
    stream.send(finish_reason=FinishReason.LENGTH)
    responses = [response async for response in call]
    chunks = [chunk for response in responses for chunk in response.chunks]
    [with_prompt] = [chunk for chunk in chunks if chunk.prompt_logprobs]
    assert with_prompt.index == 0
    assert with_prompt.prompt_logprobs[0].token_id == rig.world
    ids = {
        index: [e.token_id for c in chunks if c.index == index for e in c.logprobs]
        for index in (0, 1)
    }
    assert ids == {0: [rig.hello], 1: [rig.world, rig.world]}
    assert with_prompt.logprobs[0].rank == 2
    assert list(with_prompt.logprobs[0].top_ids) == [rig.end]
    assert {c.index: c.finish_reason for c in chunks if c.finish_reason} == {0: "length", 1: "stop"}
    assert [c.stop_token_id for c in chunks if c.WhichOneof("stop_reason")] == [7]


async def test_a_resumed_sample_that_had_ended_never_reaches_the_core(start_rig: Any) -> None:
    rig = await start_rig()
    resume = pb.Resume(output_token_ids=[rig.hello, rig.world], sent_chars=5)
    call = rig.stub.Generate(
        pb.GenerateRequest(resume=resume, sampling=pb.SamplingParams(max_tokens=2), **TEXT)
    )
    texts, reasons, usage = await rig.collect(call)
    assert (texts, reasons, usage.completion_tokens) == ({0: " world"}, {0: "length"}, 2)
    assert rig.core.submitted.empty()


async def test_behind_the_finish_reason_comes_only_the_usage(start_rig: Any) -> None:
    rig = await start_rig()
    resume = pb.Resume(output_token_ids=[rig.hello, rig.world], sent_chars=5, finished=True)
    call = rig.stub.Generate(pb.GenerateRequest(resume=resume, **TEXT))
    [response] = [response async for response in call]
    assert not response.chunks
    assert response.usage.completion_tokens == 2
    assert rig.core.submitted.empty()


async def test_abort_ends_the_samples_that_run(start_rig: Any, until: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(
        request_id="r", sampling=pb.SamplingParams(n=2, stop=["helloX"]), **TEXT
    )
    stream.send(rig.end, sample=1, finish_reason=FinishReason.LENGTH)
    await anext(aiter(call))
    stream.send(rig.hello)  # held back: it may be the start of the stop string
    await until(stream.queue.empty)
    assert (await rig.stub.Abort(pb.AbortRequest(request_id="r"))).found
    texts, reasons, usage = await rig.collect(call)
    assert texts == {0: "hello"}
    assert reasons == {0: "abort"}
    assert usage.completion_tokens == 2
    await until(lambda: rig.core.closed == ["r"])
    assert not (await rig.stub.Abort(pb.AbortRequest(request_id="r"))).found


async def test_others_have_turns_while_log_probabilities_are_converted(
    start_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_rig()
    monkeypatch.setattr(rig.intake.turns, "_seconds", 0.0)
    clock, converted_at, convert_entry = LoopClock(), [], convert._token_logprobs

    def noted(entry: LogprobEntry) -> dict[str, Any]:
        converted_at.append(clock.turn)
        return convert_entry(entry)

    monkeypatch.setattr(convert, "_token_logprobs", noted)
    call, stream = await rig.generate(
        sampling=pb.SamplingParams(logprobs=1, prompt_logprobs=1), **TEXT
    )
    entries = [LogprobEntry(rig.world, -0.5, 1, [rig.world], [-0.5])] * 40
    stream.send(*[rig.hello] * 40, prompt_logprobs=entries, logprobs=entries)
    stream.send(finish_reason=FinishReason.LENGTH)
    chunks = [chunk async for response in call for chunk in response.chunks]
    assert sum(len(chunk.logprobs) for chunk in chunks) == 40
    assert sum(len(chunk.prompt_logprobs) for chunk in chunks) == 40
    assert len(converted_at) == 80
    assert max(Counter(converted_at).values()) <= 2


async def test_a_full_message_is_followed_by_another(
    start_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "FULL_VALUES", 6)
    rig = await start_rig()
    call, stream = await rig.generate(sampling=pb.SamplingParams(n=3, logprobs=1), **TEXT)
    entries = [LogprobEntry(rig.hello, -0.5, 1, [rig.hello], [-0.5])] * 2
    end = {"logprobs": entries, "finish_reason": FinishReason.LENGTH}
    first = stream.request.handle
    stream.queue.put_nowait(
        [SampleDelta(first + sample, [rig.hello, rig.hello], **end) for sample in range(3)]
    )
    messages = [message async for message in call]
    assert [[chunk.index for chunk in message.chunks] for message in messages] == [[0], [1], [2]]
    assert [message.HasField("usage") for message in messages] == [False, False, True]
    assert messages[-1].usage.completion_tokens == 6


async def test_log_probabilities_of_a_long_prompt_are_divided_between_messages(
    start_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "FULL_VALUES", 7)
    rig = await start_rig()
    call, stream = await rig.generate(
        sampling=pb.SamplingParams(prompt_logprobs=1, max_tokens=1), **TEXT
    )
    entries = [LogprobEntry(token, -0.5, 1, [rig.hello], [-0.5]) for token in range(5)]
    wide = LogprobEntry(5, -0.5, 1, [rig.hello] * 9, [-0.5] * 9)
    stream.send(prompt_logprobs=[*entries, wide])
    stream.send(rig.hello, finish_reason=FinishReason.LENGTH, seed=3)
    messages = [message async for message in call]
    given = [
        [entry.token_id for chunk in message.chunks for entry in chunk.prompt_logprobs]
        for message in messages
    ]
    assert given == [[0, 1], [2, 3], [4], [5], []]
    assert {chunk.index for message in messages for chunk in message.chunks} == {0}
    assert [message.HasField("usage") for message in messages] == [False] * 4 + [True]
    [last] = messages[-1].chunks
    assert (last.text, last.finish_reason, last.seed) == ("hello", "length", 3)
