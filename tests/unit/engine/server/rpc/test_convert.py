from __future__ import annotations

from typing import Any

import grpc
import pytest

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.request import FinishReason

TEXT = {"text": "hello world"}


async def test_absent_fields_are_defaults_and_present_zeros_are_not(start_rig: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(**TEXT)
    params = stream.request.params
    assert (params.temperature, params.top_p, params.n, params.seed) == (1.0, 1.0, 1, None)
    assert params.skip_special_tokens
    call.cancel()
    call, stream = await rig.generate(
        sampling=pb.SamplingParams(
            temperature=0,
            seed=0,
            top_p=0.1,
            max_tokens=4,
            logprobs=0,
            logit_bias={3: 1.5},
            stop_token_ids=[7],
            allowed_token_ids=pb.TokenIds(ids=[1, 2]),
            bad_words=["hello"],
            skip_special_tokens=False,
        ),
        **TEXT,
    )
    params = stream.request.params
    assert (params.temperature, params.seed, params.top_p, params.max_tokens) == (0.0, 0, 0.1, 4)
    assert (params.logprobs, params.logit_bias) == (0, {3: 1.5})
    assert (params.stop_token_ids, params.allowed_token_ids) == ([7], [1, 2])
    assert params.bad_words_token_ids[0] == [rig.hello]
    assert not params.skip_special_tokens
    call.cancel()


async def test_resume_goes_on_behind_what_was_delivered(start_rig: Any) -> None:
    rig = await start_rig()
    resume = pb.Resume(
        output_token_ids=[rig.hello, rig.world], seed=9, sample_index=3, sent_chars=len("hello")
    )
    call, stream = await rig.generate(resume=resume, **TEXT)
    assert stream.request.resume is not None
    assert stream.request.resume.output_token_ids == [rig.hello, rig.world]
    assert stream.request.resume.sample_index == 3
    assert stream.request.params.seed == 9
    stream.send(rig.end, finish_reason=FinishReason.LENGTH)
    texts, reasons, usage = await rig.collect(call)
    assert texts == {3: " world end"}
    assert reasons == {3: "length"}
    assert usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "prompt"),
        ({"text": ""}, "text"),
        ({"token_ids": pb.TokenIds()}, "token_ids"),
        ({"token_ids": pb.TokenIds(ids=[2**31])}, "2147483648"),
        ({"token_ids": pb.TokenIds(ids=[1] * 64)}, "context"),
        ({"text": "hello " * 10_000}, "characters"),
        ({"request_id": "r" * 300, **TEXT}, "request_id"),
        ({"sampling": pb.SamplingParams(temperature=float("nan")), **TEXT}, "temperature"),
        ({"sampling": pb.SamplingParams(top_p=0), **TEXT}, "top_p"),
        ({"sampling": pb.SamplingParams(max_tokens=0), **TEXT}, "max_tokens"),
        ({"sampling": pb.SamplingParams(max_tokens=2**31), **TEXT}, "max_tokens"),
        ({"sampling": pb.SamplingParams(n=100_000), **TEXT}, "n must"),
        ({"sampling": pb.SamplingParams(logit_bias={2**31: 1}), **TEXT}, "logit_bias"),
        ({"sampling": pb.SamplingParams(allowed_token_ids=pb.TokenIds()), **TEXT}, "allowed"),
        ({"sampling": pb.SamplingParams(stop=["x"], detokenize=False), **TEXT}, "detokenize"),
        ({"sampling": pb.SamplingParams(thinking_token_budget=0), **TEXT}, "with reasoning"),
        ({"resume": pb.Resume(output_token_ids=[2**31]), **TEXT}, "2147483648"),
        ({"resume": pb.Resume(), "sampling": pb.SamplingParams(n=2), **TEXT}, "resume"),
    ],
)
async def test_a_bad_field_is_named(start_rig: Any, fields: dict[str, Any], named: str) -> None:
    rig = await start_rig()
    error = await rig.failure(rig.stub.Generate(pb.GenerateRequest(**fields)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in str(error.details())
    assert rig.core.submitted.empty()
