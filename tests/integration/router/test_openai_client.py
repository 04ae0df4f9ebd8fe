"""The OpenAI client against the router."""

import asyncio
import json
from typing import Any

import openai
import pytest


def event(**delta: Any) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
    }
    return b"data: %b\n\n" % json.dumps(chunk).encode()


WORDS = ["Hel", "lo ", "wörld", "!"]


async def chat(exchange: Any) -> None:
    if not json.loads(exchange.request.body).get("stream"):
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        await exchange.json(200, body | {"choices": [choice]})
        return
    await exchange.start_events()
    await exchange.chunk(event(role="assistant", content=""))
    for word in WORDS:
        await exchange.chunk(event(content=word))
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.end()


async def broken_chat(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.chunk(event(content=WORDS[0]))
    await asyncio.sleep(0.05)
    await exchange.chunk(event(content=WORDS[1]) + event(content=WORDS[2])[:30])
    exchange.reset()


@pytest.fixture
def connect(start_replica, start_router, model_entry):
    async def start(script: Any) -> tuple[Any, openai.AsyncOpenAI]:
        replica = await start_replica(script=script)
        router = await start_router([model_entry("m", replica)])
        return router, openai.AsyncOpenAI(
            base_url=f"{router.url}/v1", api_key="k", max_retries=0, timeout=10
        )

    return start


MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def test_chat(connect) -> None:
    _, client = await connect(chat)
    async with client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello wörld!"
        assert [model.id async for model in await client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).id == "m"


async def test_streams(connect) -> None:
    _, client = await connect(chat)

    async def one() -> str:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with client:
        assert await asyncio.gather(*[one() for _ in range(20)]) == ["Hello wörld!"] * 20


async def test_a_broken_stream_raises(connect) -> None:
    router, client = await connect(broken_chat)
    async with client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        chunks = aiter(stream)
        received = [(await anext(chunks)).choices[0].delta.content for _ in range(2)]
        assert received == WORDS[:2]
        with pytest.raises(openai.APIError, match="broke off"):
            await anext(chunks)
    assert router.in_flight() == 0


async def test_an_unknown_model_raises_not_found(connect) -> None:
    _, client = await connect(chat)
    async with client:
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model="other", messages=MESSAGES)
    assert refused.value.code == "model_not_found"


async def test_leaving_a_stream_frees_its_replica(connect, eventually) -> None:
    async def endless(exchange: Any) -> None:
        await exchange.start_events()
        await exchange.chunk(event(content="x"))
        await exchange.client_left()

    router, client = await connect(endless)
    async with client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        await anext(aiter(stream))
        assert router.in_flight() == 1
        await stream.close()
        await eventually(lambda: router.in_flight() == 0)
