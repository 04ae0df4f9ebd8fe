"""LiteLLM as a library, over all three protocols."""

from __future__ import annotations

import litellm
import pytest
from questions import (
    ANNA,
    ASK_NAME,
    EXTRACT,
    FEW,
    MANY,
    MODEL,
    NAME,
    NAMED,
    SORT,
    SORTED,
    UNKNOWN,
    URL,
    V1,
    WEATHER,
    WEATHER_ANSWER,
    WEATHER_TOOL,
    Person,
    cancelled,
    check_stream,
    get_weather,
    user,
)

OPENAI = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": "none", "max_retries": 0}
# Left out, max_tokens is that of another model.
ANTHROPIC = OPENAI | {"model": f"anthropic/{MODEL}", "api_base": URL, "max_tokens": 1000}


def answer_with_tool(where: dict[str, object]) -> str:
    """Return the answer to a question that needs a tool."""
    messages = user(WEATHER)
    asked = litellm.completion(**where, messages=messages, tools=[WEATHER_TOOL])
    message = asked.choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "get_weather"
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": get_weather("Oslo")}]
    answer = litellm.completion(**where, messages=messages, tools=[WEATHER_TOOL])
    return answer.choices[0].message.content


def check_streams(where: dict[str, object]) -> None:
    chunks = litellm.completion(**where, messages=user(FEW), stream=True)
    check_stream(chunk.choices[0].delta.content for chunk in chunks)


def test_chat(run_example) -> None:
    assert run_example("LiteLLM") == SORTED


def test_stream() -> None:
    check_streams(OPENAI)


def test_tools() -> None:
    assert answer_with_tool(OPENAI) == WEATHER_ANSWER


def test_structured_output() -> None:
    answer = litellm.completion(**OPENAI, messages=user(EXTRACT), response_format=Person)
    assert Person.model_validate_json(answer.choices[0].message.content) == ANNA


def test_responses() -> None:
    first = litellm.responses(**OPENAI, input=NAME)
    answer = litellm.responses(**OPENAI, input=ASK_NAME, previous_response_id=first.id)
    assert answer.output_text == NAMED


def test_messages() -> None:
    check_streams(ANTHROPIC)
    assert answer_with_tool(ANTHROPIC) == WEATHER_ANSWER


def test_errors() -> None:
    with pytest.raises(litellm.NotFoundError, match=UNKNOWN):
        litellm.completion(**OPENAI | {"model": "openai/nope"}, messages=user(SORT))


def test_cancel() -> None:
    with cancelled():
        chunks = litellm.completion(**OPENAI, messages=user(MANY), stream=True)
        next(chunks)
        chunks.completion_stream.close()
