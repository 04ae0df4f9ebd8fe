"""OpenAI's own client against a real server over a scripted core."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types import responses as types
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from support.answer_texts import REASONING_ANSWERS, TOOL_ANSWERS, Answer

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
BODY: dict[str, Any] = {"model": "tiny", "max_output_tokens": 400, "input": "hi"}
PATH = "/v1/responses"
HERMES = next(each for each in TOOL_ANSWERS if each.format == "hermes" and each.calls)
TWO_CALLS = next(each for each in TOOL_ANSWERS if each.format == "hermes" and len(each.calls) > 1)
THOUGHT = next(each for each in REASONING_ANSWERS if each.reasoning and each.content)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def body_for(answer: Answer | None) -> dict[str, Any]:
    return BODY if answer is THOUGHT else {**BODY, "tools": [WEATHER]}


def comparable(response: Response) -> dict[str, Any]:
    """A response without ids, times and what the client itself adds."""
    made = response.to_dict()
    for item in made["output"]:  # type: ignore[attr-defined]
        item.pop("id")
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return {k: v for k, v in made.items() if k not in ("id", "created_at", "completed_at")}


async def read(server: Any, **body: Any) -> list[dict[str, Any]]:
    answer = await server.post(PATH, {**BODY, **body, "stream": True})
    assert answer.status_code == 200, answer.text
    events = []
    for event in answer.text.strip().split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_unary_response(start: Any) -> None:
    server = await start()
    response = await server.openai().responses.create(
        **{**BODY, "max_output_tokens": 9}, metadata={"a": "b"}, user="u", instructions="Be"
    )
    assert response.output_text == "The quick"
    [message] = response.output
    assert (message.type, message.status) == ("message", "incomplete")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.id.startswith("resp_")
    assert (response.object, response.model, response.user) == ("response", "tiny", "u")
    assert (response.metadata, response.instructions) == ({"a": "b"}, "Be")
    usage = response.usage
    assert (usage.output_tokens, usage.input_tokens_details.cached_tokens) == (9, 4)
    assert usage.input_tokens == len("<system>Be<user>hi<assistant>")
    assert usage.total_tokens == usage.input_tokens + 9
    # The client builds its types without a check, so here is one.
    Response.model_validate(response.to_dict())


@pytest.mark.parametrize("tokens_a_batch", [1, 7])
@pytest.mark.parametrize("answer", [None, HERMES, TWO_CALLS, THOUGHT])
async def test_a_stream_is_the_unary_response(
    start: Any, answer: Answer | None, tokens_a_batch: int
) -> None:
    server = await start(answer)
    body = body_for(answer)
    server.core.tokens_a_batch = tokens_a_batch
    client = server.openai()
    unary = await client.responses.create(**body)
    async with client.responses.stream(**body) as stream:
        streamed = await stream.get_final_response()
    assert comparable(streamed) == comparable(unary)
    assert unary.status == "completed"


@pytest.mark.parametrize("answer", [None, HERMES, TWO_CALLS, THOUGHT])
async def test_every_event_is_of_the_clients_types_and_they_agree(
    start: Any, answer: Answer | None
) -> None:
    server = await start(answer)
    events = await read(server, **body_for(answer), top_logprobs=2)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas: dict[tuple[int, str], str] = {}
    for event in events:
        EVENTS.validate_python(event)
        kind = event["type"].removeprefix("response.")
        place = (event.get("output_index", -1), kind.rpartition(".")[0])
        if kind.endswith(".delta"):
            deltas[place] = deltas.get(place, "") + event["delta"]
        elif place in deltas:
            assert deltas.pop(place) == event.get("text", event.get("arguments"))
    assert not deltas
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == done
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [each["id"] for each in added] == [each["id"] for each in done]


async def test_the_order_of_events(start: Any) -> None:
    server = await start()
    events = await read(server, max_output_tokens=2)
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "incomplete"),
    ]


async def test_a_call_is_an_item(start: Any) -> None:
    server = await start(TWO_CALLS)
    response = await server.openai().responses.create(**BODY, tools=[WEATHER])
    calls = [item for item in response.output if isinstance(item, types.ResponseFunctionToolCall)]
    assert [(call.name, call.arguments) for call in calls] == [
        (name, arguments) for name, arguments, _ in TWO_CALLS.calls
    ]
    assert response.output_text.strip() == TWO_CALLS.content.strip()
    assert {call.status for call in calls} == {"completed"}
    assert len({call.call_id for call in calls}) == len(calls)


async def test_a_call_that_is_cut_off_is_incomplete(start: Any) -> None:
    server = await start(HERMES)
    cut = len(HERMES.text) - len('lo"}}\n</tool_call>')
    events = await read(server, tools=[WEATHER], max_output_tokens=cut)
    assert events[-1]["type"] == "response.incomplete"
    [call] = events[-1]["response"]["output"]
    assert (call["type"], call["status"]) == ("function_call", "incomplete")
    assert call["arguments"].startswith('{"city"')


async def test_reasoning_is_an_item(start: Any) -> None:
    server = await start(THOUGHT)
    response = await server.openai().responses.create(**BODY, reasoning={"summary": "auto"})
    thought, message = response.output
    assert (thought.type, thought.content[0].text) == ("reasoning", THOUGHT.reasoning)
    assert (message.type, message.content[0].text) == ("message", THOUGHT.content)
    counted = response.usage.output_tokens_details.reasoning_tokens
    assert len(THOUGHT.reasoning) <= counted < response.usage.output_tokens


async def test_a_loop_over_a_tool(start: Any, prompt_of: Any) -> None:
    server = await start(HERMES)
    client = server.openai()
    items: Any = [{"role": "user", "content": "hi"}]
    response = await client.responses.create(model="tiny", input=items, tools=[WEATHER])
    items += response.output
    call = next(item for item in response.output if item.type == "function_call")
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    await client.responses.create(model="tiny", input=items, tools=[WEATHER])
    city = json.loads(call.arguments)["city"]
    assert f"<assistant>get_weather={city}<tool>rain<assistant>" in prompt_of(server)


async def test_reasoning_comes_back_as_such(start: Any, prompt_of: Any) -> None:
    server = await start(THOUGHT)
    client = server.openai()
    response = await client.responses.create(**BODY)
    await client.responses.create(
        model="tiny", input=[*response.output, {"role": "user", "content": "So?"}]
    )
    assert f"<assistant>{THOUGHT.reasoning}{THOUGHT.content}<user>So?" in prompt_of(server)


class City(BaseModel):
    name: str


async def test_an_answer_is_parsed_into_a_model(start: Any) -> None:
    server = await start(Answer("hermes", '{"name": "Oslo"}'))
    response = await server.openai().responses.parse(**BODY, text_format=City)
    assert response.output_parsed == City(name="Oslo")
    asked = json.loads(server.core.requests[-1].params.structured_outputs)
    assert asked["json"]["properties"].keys() == {"name"}


async def test_log_probabilities(start: Any) -> None:
    server = await start()
    response = await server.openai().responses.create(
        **{**BODY, "max_output_tokens": 3}, include=["message.output_text.logprobs"], top_logprobs=2
    )
    told = response.output[0].content[0].logprobs
    assert "".join(each.token for each in told) == "The"
    assert [len(each.top_logprobs) for each in told] == [2, 2, 2]
    events = await read(server, max_output_tokens=3, top_logprobs=2)
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    assert [each["token"] for event in deltas for each in event["logprobs"]] == ["T", "h", "e"]
    assert [each["token"] for each in events[-4]["logprobs"]] == ["T", "h", "e"]


async def test_effort(start: Any, prompt_of: Any) -> None:
    server = await start()
    client = server.openai()
    await client.responses.create(**BODY, reasoning={"effort": "low"})
    assert prompt_of(server).endswith("<assistant>low")
    await client.responses.create(**BODY, reasoning={"effort": "none"})
    assert prompt_of(server).endswith("<think></think>none")


async def test_only_allowed_tools_are_offered(start: Any, prompt_of: Any) -> None:
    server = await start()
    other = {**WEATHER, "name": "other"}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "other"}]}
    await server.openai().responses.create(**BODY, tools=[WEATHER, other], tool_choice=allowed)
    assert prompt_of(server).startswith("<tools>other<user>")


async def test_a_large_body_is_read_by_a_body_worker(start_server: Any) -> None:
    server = await start_server()
    body = {**BODY, "max_output_tokens": 9, "future": "x" * 200_000, "metadata": {"a": "b"}}
    made = (await server.post(PATH, body)).json()
    assert made["output"][0]["content"][0]["text"] == "The quick"
    assert made["metadata"] == {"a": "b"}


async def test_under_the_prefix_of_kserve(start: Any) -> None:
    server = await start()
    assert (await server.post(f"/openai{PATH}", BODY)).json()["object"] == "response"


USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "sentence", "param"),
    [
        ({"input": None}, "input is required", "input"),
        ({"input": [USER, CALL]}, "input[1] is a function_call without an answer", "input[1]"),
        ({"input": [{**USER, "content": [{"type": "input_image"}]}]}, "'input_image'", None),
        ({"tools": [{"type": "web_search"}]}, "tools[0] is of type 'web_search'", "tools[0]"),
        ({"tools": [{**WEATHER, "name": "?"}]}, "tools[0].name must be 1 to 64", "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice 'required' needs tools", "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
        ({"max_output_tokens": 9999}, "maximum context length", "max_output_tokens"),
        ({"temperature": -1}, "temperature", "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type must be", "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format must be an object", None),
        ({"text": {"verbosity": "low"}}, "text.verbosity is not supported", "text.verbosity"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort must be one of", "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary must be", "reasoning.summary"),
        ({"top_logprobs": 21}, "top_logprobs must be 0 to 20", "top_logprobs"),
        ({"include": ["all"]}, "include has 'all'", "include"),
        ({"truncation": "some"}, "truncation must be", "truncation"),
        ({"background": True}, "background is not supported", "background"),
        ({"store": True}, "store needs a router that keeps responses", "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id needs a router", None),
        ({"metadata": {"a": "x" * 513}}, "metadata takes keys", "metadata"),
        ({"metadata": {"a": 5}}, "must be a string", None),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata has 17 entries", "metadata"),
        ({"conversation": "conv_1"}, "conversation is not supported", "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt is not supported", "prompt"),
        ({"input": "x" * 600}, "maximum context length", "input"),
    ],
)
async def test_bad_input_gets_one_sentence(
    start: Any, fields: Any, sentence: str, param: str | None
) -> None:
    server = await start()
    with pytest.raises(openai.BadRequestError) as refused:
        await server.openai().responses.create(**{**BODY, **fields})
    error: Any = refused.value.body
    assert sentence in error["message"]
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


async def test_a_failure_within_a_stream_is_the_last_event(start: Any) -> None:
    server = await start()
    server.core.error = "A step failed."
    events = await read(server)
    assert [event["type"] for event in events] == [
        *("response.created", "response.in_progress", "response.failed")
    ]
    EVENTS.validate_python(events[-1])
    response = events[-1]["response"]
    assert response["error"] == {"code": "server_error", "message": "A step failed."}
    assert response["status"] == "failed"


async def test_a_router_says_that_it_keeps_the_response(start: Any) -> None:
    server = await start()
    fields = {"previous_response_id": "resp_1", "kept_by_router": True}
    made = (await server.post(PATH, {**BODY, **fields})).json()
    assert (made["store"], made["previous_response_id"]) == (True, "resp_1")
    made = (await server.post(PATH, {**BODY, **fields, "store": False})).json()
    assert made["store"] is False
