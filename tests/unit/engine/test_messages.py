from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kvasir_engine import messages as m
from kvasir_engine.request import (
    EngineRequest,
    FinishReason,
    LogprobEntry,
    Resume,
    SampleDelta,
)
from kvasir_engine.sampling_params import SamplingParams

REQUEST = EngineRequest(
    request_id="req-1",
    handle=7,
    prompt_token_ids=[1, 2, 3],
    params=SamplingParams(
        n=2, stop=["a", "ü"], logit_bias={5: -1.5}, seed=-3, max_tokens=None, logprobs=0
    ),
    eos_token_ids=[2],
    block_hashes=bytes(range(16)),
    cache_salt="tenant",
    priority=-2,
    resume=Resume([4, 5], seed=2**63 - 1, sample_index=1),
    client=3,
)
DELTA = SampleDelta(
    handle=8,
    token_ids=[9],
    finish_reason=FinishReason.STOP,
    stop_reason=9,
    logprobs=[LogprobEntry(9, -0.5, 1, [9, 3], [-0.5, -1.0])],
    prompt_logprobs=[LogprobEntry(2, -1.5, 4)],
    num_cached_tokens=16,
    seed=11,
)


@pytest.mark.parametrize(
    "message",
    [
        m.Hello(1, 2**63 - 1),
        m.Add.of(REQUEST, 5),
        m.Abort([1, 2]),
        m.Finish(3),
        m.Drain(1),
    ],
)
def test_messages_to_the_core_survive_the_wire(message: Any) -> None:
    assert m.to_core_decoder.decode(m.encoder.encode(message)) == message


@pytest.mark.parametrize("ids", [[1, 2, 3], array("i", [1, 2, 3])])
def test_a_request_comes_whole_and_stays_as_it_is_where_it_was(ids: Sequence[int]) -> None:
    sent = replace(REQUEST, prompt_token_ids=ids)
    message = m.to_core_decoder.decode(m.encoder.encode(m.Add.of(sent, 5)))
    assert isinstance(message, m.Add)
    got = message.whole()
    assert (list(sent.prompt_token_ids), list(got.prompt_token_ids)) == ([1, 2, 3], [1, 2, 3])
    assert replace(got, prompt_token_ids=[1, 2, 3]) == REQUEST


def test_a_prompt_costs_four_bytes_a_token_and_no_object() -> None:
    sent = replace(REQUEST, prompt_token_ids=[100_000] * 1000)
    frame = m.encoder.encode(m.Add.of(sent, 5))
    assert len(frame) - len(m.encoder.encode(m.Add.of(REQUEST, 5))) < 4 * 1000
    message = m.to_core_decoder.decode(frame)
    assert isinstance(message, m.Add)
    assert isinstance(message.whole().prompt_token_ids, array)


def test_half_an_id_is_an_error() -> None:
    message = m.Add(REQUEST, 5, bytes(7))
    with pytest.raises(ValueError, match="multiple of item size"):
        message.whole()


@pytest.mark.parametrize(
    "message",
    [
        m.Accepted(1),
        m.Rejected(1, 429, "full", retry_after=2),
        m.StepTokens(array("i", [1, 2]).tobytes(), array("i", [5, 6]).tobytes(), [DELTA]),
        m.Drained(),
    ],
)
def test_messages_from_the_core_survive_the_wire(message: Any) -> None:
    assert m.from_core_decoder.decode(m.encoder.encode(message)) == message


def test_a_message_of_the_other_direction_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError, match="ok"):
        m.to_core_decoder.decode(m.encoder.encode(m.Accepted(1)))


def test_a_wrong_field_names_its_place() -> None:
    frame = msgspec.msgpack.encode(["abort", ["one"]])
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str`"):
        m.to_core_decoder.decode(frame)
