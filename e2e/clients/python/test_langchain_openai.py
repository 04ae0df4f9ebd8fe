"""LangChain over Chat Completions and Responses."""

from __future__ import annotations

import openai
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
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
    V1,
    WEATHER,
    WEATHER_ANSWER,
    Person,
    cancelled,
    check_stream,
    get_weather,
)


def connect(model: str = MODEL, **options: object) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=V1, api_key="none", max_retries=0, **options)


def answer_with_tool(model: ChatOpenAI) -> str:
    """Return the answer to a question that needs a tool."""
    able = model.bind_tools([tool(get_weather)])
    messages = [HumanMessage(WEATHER)]
    messages.append(able.invoke(messages))
    [call] = messages[-1].tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    messages.append(tool(get_weather).invoke(call))
    return able.invoke(messages).text


def test_chat(run_example) -> None:
    assert run_example("LangChain, as OpenAI") == SORTED


def test_stream() -> None:
    check_stream(chunk.text for chunk in connect().stream(FEW))


def test_tools() -> None:
    assert answer_with_tool(connect()) == WEATHER_ANSWER


def test_structured_output() -> None:
    assert connect().with_structured_output(Person).invoke(EXTRACT) == ANNA


def test_structured_output_as_a_call() -> None:
    # Its arguments are what is asked for; what is in them this model does not know.
    form = connect().with_structured_output(Person, method="function_calling", strict=True)
    assert isinstance(form.invoke(EXTRACT), Person)


def test_responses() -> None:
    model = connect(use_responses_api=True, use_previous_response_id=True)
    said = [HumanMessage(NAME)]
    said += [model.invoke(said), HumanMessage(ASK_NAME)]
    assert model.invoke(said).text == NAMED
    check_stream(chunk.text for chunk in model.stream(FEW))
    assert model.with_structured_output(Person).invoke(EXTRACT) == ANNA


def test_responses_tools() -> None:
    assert answer_with_tool(connect(use_responses_api=True)) == WEATHER_ANSWER


def test_errors() -> None:
    with pytest.raises(openai.NotFoundError, match=UNKNOWN):
        connect("nope").invoke(SORT)


def test_cancel() -> None:
    with cancelled():
        chunks = connect().stream(MANY)
        next(chunks)
        chunks.close()
