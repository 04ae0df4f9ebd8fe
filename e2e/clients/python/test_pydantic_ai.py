"""Pydantic AI over Chat Completions and Responses."""

from __future__ import annotations

import asyncio

import pytest
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
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

provider = OpenAIProvider(base_url=V1, api_key="none")
chat = OpenAIChatModel(MODEL, provider=provider)
responses = OpenAIResponsesModel(MODEL, provider=provider)


async def pieces(model: object) -> list[str]:
    async with Agent(model).run_stream(FEW) as run:
        return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]


def test_chat(run_example) -> None:
    assert run_example("Pydantic AI") == SORTED


def test_stream() -> None:
    check_stream(asyncio.run(pieces(chat)))


def test_tools() -> None:
    assert Agent(chat, tools=[get_weather]).run_sync(WEATHER).output == WEATHER_ANSWER


def test_structured_output() -> None:
    agent = Agent(chat, output_type=NativeOutput(Person))
    assert agent.run_sync(EXTRACT).output == ANNA


def test_structured_output_beside_tools() -> None:
    agent = Agent(chat, output_type=NativeOutput(Person), tools=[get_weather])
    assert agent.run_sync(EXTRACT).output == ANNA


def test_structured_output_as_a_call() -> None:
    # Its arguments are what is asked for; what is in them this model does not know.
    assert isinstance(Agent(chat, output_type=Person).run_sync(EXTRACT).output, Person)


def test_responses() -> None:
    agent = Agent(responses, model_settings={"openai_previous_response_id": "auto"})
    first = agent.run_sync(NAME)
    assert agent.run_sync(ASK_NAME, message_history=first.all_messages()).output == NAMED
    check_stream(asyncio.run(pieces(responses)))
    assert Agent(responses, tools=[get_weather]).run_sync(WEATHER).output == WEATHER_ANSWER


def test_errors() -> None:
    agent = Agent(OpenAIChatModel("nope", provider=provider))
    with pytest.raises(ModelHTTPError, match=UNKNOWN) as refused:
        agent.run_sync(SORT)
    assert refused.value.status_code == 404


def test_cancel() -> None:
    async def leave() -> None:
        async with Agent(chat).run_stream(MANY) as run:
            await anext(run.stream_text(delta=True, debounce_by=None))
            await run.cancel()

    with cancelled():
        asyncio.run(leave())
