"""LangChain over the Messages API."""

from __future__ import annotations

import anthropic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
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
    WEATHER,
    WEATHER_ANSWER,
    Person,
    cancelled,
    check_stream,
    get_weather,
)


def connect(model: str = MODEL) -> ChatAnthropic:
    return ChatAnthropic(model=model, base_url=URL, api_key="none", max_tokens=1000, max_retries=0)


def test_chat(run_example) -> None:
    assert run_example("LangChain, as Anthropic") == SORTED


def test_messages() -> None:
    said = [HumanMessage(NAME)]
    said += [connect().invoke(said), HumanMessage(ASK_NAME)]
    assert connect().invoke(said).text == NAMED


def test_stream() -> None:
    check_stream(chunk.text for chunk in connect().stream(FEW))


def test_tools() -> None:
    able = connect().bind_tools([tool(get_weather)])
    messages = [HumanMessage(WEATHER)]
    messages.append(able.invoke(messages))
    [call] = messages[-1].tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    messages.append(tool(get_weather).invoke(call))
    assert able.invoke(messages).text == WEATHER_ANSWER


def test_structured_output() -> None:
    form = connect().with_structured_output(Person, method="json_schema")
    assert form.invoke(EXTRACT) == ANNA


def test_structured_output_as_a_call() -> None:
    assert isinstance(connect().with_structured_output(Person).invoke(EXTRACT), Person)


def test_token_count() -> None:
    assert connect().get_num_tokens_from_messages([HumanMessage(SORT)]) == 14


def test_errors() -> None:
    with pytest.raises(anthropic.NotFoundError, match=UNKNOWN):
        connect("nope").invoke(SORT)


def test_cancel() -> None:
    with cancelled():
        chunks = connect().stream(MANY)
        next(chunk for chunk in chunks if chunk.text)
        chunks.close()
