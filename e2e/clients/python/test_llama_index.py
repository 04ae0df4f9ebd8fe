"""LlamaIndex."""

from __future__ import annotations

import asyncio

import openai
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from questions import (
    ANNA,
    EXTRACT,
    FEW,
    MANY,
    MODEL,
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


def connect(model: str = MODEL) -> OpenAILike:
    return OpenAILike(
        model=model,
        api_base=V1,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        max_retries=0,
    )


def test_chat(run_example) -> None:
    assert run_example("LlamaIndex") == SORTED


def test_stream() -> None:
    check_stream(chunk.delta for chunk in connect().stream_chat([ChatMessage(FEW)]))


def test_tools() -> None:
    async def answer() -> str:
        return str(await FunctionAgent(tools=[get_weather], llm=connect()).run(WEATHER))

    assert asyncio.run(answer()) == WEATHER_ANSWER


def test_structured_output() -> None:
    assert connect().as_structured_llm(Person).complete(EXTRACT).raw == ANNA


def test_errors() -> None:
    with pytest.raises(openai.NotFoundError, match=UNKNOWN):
        connect("nope").complete(SORT)


def test_cancel() -> None:
    async def leave() -> None:
        chunks = await connect().astream_chat([ChatMessage(MANY)])
        await anext(chunks)
        await chunks.aclose()

    with cancelled():
        asyncio.run(leave())
