"""anthropic-python."""

from __future__ import annotations

import anthropic
import pytest
from anthropic import beta_tool
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
    URL,
    WEATHER,
    WEATHER_ANSWER,
    WEATHER_TOOL_OF_MESSAGES,
    Person,
    cancelled,
    check_stream,
    get_weather,
    user,
)

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
LONGEST = {"model": MODEL, "max_tokens": 1000}


def test_chat(run_example) -> None:
    assert run_example("Anthropic (Python)") == SORTED


def test_messages() -> None:
    said = client.messages.create(**LONGEST, messages=user(NAME))
    conversation = [*user(NAME), {"role": "assistant", "content": said.content}, *user(ASK_NAME)]
    answer = client.messages.create(**LONGEST, messages=conversation)
    assert answer.content[0].text == NAMED
    assert answer.stop_reason == "end_turn"


def test_stream() -> None:
    with client.messages.stream(**LONGEST, messages=user(FEW)) as stream:
        check_stream(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == 141


def test_tools() -> None:
    with client.messages.stream(
        **LONGEST, messages=user(WEATHER), tools=[WEATHER_TOOL_OF_MESSAGES]
    ) as stream:
        asked = stream.get_final_message()
    assert asked.stop_reason == "tool_use"
    [call] = asked.content
    assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather("Oslo")}
    conversation = [
        *user(WEATHER),
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(
        **LONGEST, messages=conversation, tools=[WEATHER_TOOL_OF_MESSAGES]
    )
    assert answer.content[0].text == WEATHER_ANSWER


def test_tools_runner() -> None:
    runner = client.beta.messages.tool_runner(
        **LONGEST, messages=user(WEATHER), tools=[beta_tool(get_weather)]
    )
    assert runner.until_done().content[0].text == WEATHER_ANSWER


def test_thinking() -> None:
    budget = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(
        model=MODEL, max_tokens=1500, messages=user(LETTERS), thinking=budget
    ) as stream:
        thought, text = stream.get_final_message().content
    assert (thought.type, thought.thinking.strip()) == ("thinking", THOUGHT)
    assert text.text == NUMBER


def test_structured_output() -> None:
    answer = client.messages.parse(**LONGEST, messages=user(EXTRACT), output_format=Person)
    assert answer.parsed_output == ANNA


def test_token_count() -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=user(SORT))
    answer = client.messages.create(**LONGEST, messages=user(SORT))
    usage = answer.usage
    assert counted.input_tokens == 14 == usage.input_tokens + usage.cache_read_input_tokens


def test_errors() -> None:
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.messages.create(model="nope", max_tokens=9, messages=user(SORT))
    assert refused.value.body["error"] == {"type": "not_found_error", "message": UNKNOWN}


def test_cancel() -> None:
    with cancelled(), client.messages.stream(**LONGEST, messages=user(MANY)) as stream:
        next(stream.text_stream)
