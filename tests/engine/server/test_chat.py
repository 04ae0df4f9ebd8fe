from __future__ import annotations

import asyncio

import openai
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(
        base_url=server.url + "/v1", api_key="x", max_retries=0
    ) as made:
        yield made


async def test_a_unary_answer(server, client):
    answer = await client.chat.completions.create(**CHAT, max_tokens=9)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "The quick"
    assert choice.finish_reason == "length"
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.usage.completion_tokens == 9
    assert answer.usage.prompt_tokens == len("<user>hi<assistant>")
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    [request] = server.core.requests
    assert server.core.tokenizer.decode(request.prompt_token_ids) == "<user>hi<assistant>"


async def test_a_stream_is_the_unary_answer_in_parts(server, client):
    options = {**CHAT, "max_tokens": 200, "seed": 0}
    unary = await client.chat.completions.create(**options)
    stream = await client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == unary.choices[0].message.content == server.core.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == unary.usage
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > len(server.core.text)


async def test_the_synchronous_client_streams(server):
    def stream() -> str:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="x") as client:
            chunks = client.chat.completions.create(**CHAT, max_tokens=9, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert await asyncio.to_thread(stream) == "The quick"
