"""Events as bytes; what they hold is test_chat.py's and test_completions.py's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.request import EngineRequest, FinishReason, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai.chat import ChatAnswer
from kvasir_engine.server.openai.logprob_format import LogprobFormat
from kvasir_engine.server.openai.schema import ChatBody, StreamOptions
from kvasir_engine.server.openai.sse import DONE, EventWriter
from kvasir_engine.text.output_assembler import OutputAssembler

Answers = Callable[..., ChatAnswer]


@pytest.fixture
def answer(scripted_core: Any, byte_tokenizer: Tokenizer) -> Answers:
    """answer(fleet=False, **fields of the body): a chat's answer to two choices."""

    def make(*, fleet: bool = False, **fields: Any) -> ChatAnswer:
        params = SamplingParams(n=2, max_tokens=9)
        request = EngineRequest("r", 0, [1, 2], params, eos_token_ids=[257])
        run = PromptRun(request, OutputAssembler(request, byte_tokenizer), None)
        metrics = ApiMetrics(MetricRegistry("kvasir_", "tiny"))
        return ChatAnswer(
            Generation(scripted_core, metrics, [run], LoopTurns()),
            ChatBody(messages=[], stream=True, **fields),
            request_id="1",
            model="tiny",
            logprob_format=LogprobFormat(byte_tokenizer),
            fleet=fleet,
        )

    return make


def push(answer: ChatAnswer, index: int, text: str, **fields: Any) -> Any:
    """The update that `text` as one delta makes."""
    assembler = answer.generation.runs[0].assembler
    ids = [] if not text else answer.logprob_format.tokenizer.encode(text)
    return assembler.push(SampleDelta(index, ids, **fields))


def data_of(events: bytes) -> list[Any]:
    return [
        json.loads(line.removeprefix(b"data: "))
        for line in events.split(b"\n")
        if line.startswith(b"data: {")
    ]


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("text", ["plain", 'quo"te\n', "Zürich 😀"])
def test_an_event_joined_from_parts_equals_one_that_is_encoded_whole(
    answer: Answers, text: str, usage: bool
) -> None:
    made = answer(stream_options=StreamOptions(include_usage=usage))
    writer = EventWriter(made)
    update = push(made, 1, text)
    _, event = data_of(writer.events([update]))
    assert event == {
        **made.envelope,
        "choices": [{**made.chunk_choice(made.choices[1], update), "logprobs": None}],
        **({"usage": None} if usage else {}),
    }


def test_a_batch_is_one_chunk_and_silence_is_none(answer: Answers) -> None:
    made = answer()
    writer = EventWriter(made)
    roles = data_of(writer.events([push(made, 0, "a"), push(made, 1, "b")]))
    assert [event["choices"][0]["index"] for event in roles] == [0, 0, 1, 1]
    assert writer.events([push(made, 0, "")]) == b""


def test_only_a_router_sees_comments(answer: Answers) -> None:
    plain, fleet = answer(), answer(fleet=True)
    lines = []
    for made in (plain, fleet):
        update = push(made, 0, "a", seed=5, num_cached_tokens=2)
        lines.append((EventWriter(made).events([update]) + EventWriter(made).end()).split(b"\n"))
    assert not [line for line in lines[0] if line.startswith(b":")]
    comments = [line for line in lines[1] if line.startswith(b":")]
    assert comments[0] == b': kvasir {"i":0,"t":[],"s":5,"c":2}'
    assert json.loads(comments[-1].removeprefix(b": kvasir "))["u"]["completion_tokens"] == 1


def test_the_end_is_usage_where_it_was_asked_for_and_done(answer: Answers) -> None:
    assert EventWriter(answer()).end() == DONE
    made = answer(stream_options=StreamOptions(include_usage=True))
    push(made, 0, "abc", finish_reason=FinishReason.LENGTH)
    end = EventWriter(made).end()
    [event] = data_of(end)
    assert event["choices"] == []
    assert event["usage"] == made.usage
    assert event["usage"]["completion_tokens"] == 3
    assert end.endswith(DONE)


def test_a_plain_client_is_told_to_send_again(answer: Answers) -> None:
    [event] = data_of(EventWriter(answer()).handover())
    assert event["error"]["code"] == "handover"
    assert b"event: handover" in EventWriter(answer(fleet=True)).handover()
