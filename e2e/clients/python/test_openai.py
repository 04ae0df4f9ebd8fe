"""openai-python."""

from __future__ import annotations

import asyncio

import openai
import pytest
from questions import (
    ANNA,
    ASK_NAME,
    EXTRACT,
    FEW,
    LETTERS,
    MANY,
    MODEL,
    NAME,
    NAMED,
    NUMBER,
    SORT,
    SORTED,
    THOUGHT,
    UNKNOWN,
    V1,
    WEATHER,
    WEATHER_ANSWER,
    WEATHER_FUNCTION,
    WEATHER_TOOL,
    WEATHER_TOOL_OF_RESPONSES,
    Person,
    cancelled,
    check_stream,
    get_weather,
    user,
)

client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0)


def test_chat(run_example) -> None:
    assert run_example("OpenAI (Python)") == SORTED


def test_stream() -> None:
    async def pieces() -> list[str]:
        async with openai.AsyncOpenAI(base_url=V1, api_key="none", max_retries=0) as it:
            stream = await it.chat.completions.create(
                model=MODEL,
                messages=user(FEW),
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens == 141
        return [each.choices[0].delta.content for each in chunks if each.choices]

    check_stream(asyncio.run(pieces()))


def test_tools() -> None:
    messages = user(WEATHER)
    asked = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER_TOOL])
    assert asked.choices[0].finish_reason == "tool_calls"
    message = asked.choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Oslo"}')
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": get_weather("Oslo")}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER_TOOL])
    assert answer.choices[0].message.content == WEATHER_ANSWER


def test_thinking() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=user(LETTERS), reasoning_effort="low"
    )
    message = answer.choices[0].message
    assert (message.reasoning_content.strip(), message.content) == (THOUGHT, NUMBER)
    assert answer.usage.completion_tokens_details.reasoning_tokens >= len(THOUGHT.split())


def test_thinking_in_responses() -> None:
    answer = client.responses.create(model=MODEL, input=LETTERS, reasoning={"effort": "low"})
    thought, message = answer.output
    assert (thought.type, thought.content[0].text.strip()) == ("reasoning", THOUGHT)
    assert (message.type, answer.output_text) == ("message", NUMBER)


def test_structured_output() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=user(EXTRACT), response_format=Person
    )
    assert answer.choices[0].message.parsed == ANNA


def test_structured_output_beside_tools() -> None:
    tools = [{"type": "function", "function": WEATHER_FUNCTION | {"strict": True}}]
    both = {"model": MODEL, "response_format": Person, "tools": tools}
    asked = client.chat.completions.parse(messages=user(WEATHER), **both)
    [call] = asked.choices[0].message.tool_calls
    assert call.function.parsed_arguments == {"city": "Oslo"}
    answer = client.chat.completions.parse(messages=user(EXTRACT), **both)
    assert answer.choices[0].message.parsed == ANNA


def test_responses() -> None:
    first = client.responses.create(model=MODEL, input=NAME)
    with client.responses.stream(
        model=MODEL, input=ASK_NAME, previous_response_id=first.id
    ) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == NAMED
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    parsed = client.responses.parse(model=MODEL, input=EXTRACT, text_format=Person)
    assert parsed.output_parsed == ANNA
    assert client.responses.retrieve(first.id).output_text == first.output_text


def test_responses_tools() -> None:
    tools = [WEATHER_TOOL_OF_RESPONSES]
    asked = client.responses.create(model=MODEL, input=WEATHER, tools=tools)
    [call] = asked.output
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Oslo"}')
    output = {"type": "function_call_output", "call_id": call.call_id}
    answer = client.responses.create(
        model=MODEL,
        input=[{**output, "output": get_weather("Oslo")}],
        previous_response_id=asked.id,
        tools=tools,
    )
    assert answer.output_text == WEATHER_ANSWER


def test_errors() -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="nope", messages=user(SORT))
    assert refused.value.body["message"] == UNKNOWN
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model=MODEL, input=SORT, previous_response_id="resp_none")
    assert unknown.value.param == "previous_response_id"


def test_cancel() -> None:
    with cancelled():
        stream = client.chat.completions.create(model=MODEL, messages=user(MANY), stream=True)
        next(iter(stream))
        stream.close()
