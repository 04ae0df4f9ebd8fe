"""A client of the router does not see that the engine of its stream ended."""

import asyncio
import copy
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

COPY = "Copy: über Größe naïve 😀 🎉 Zürich"
"""Copied exactly, one byte a token: most characters arrive in several parts."""
USAGE = {"include_usage": True}


def chat(prompt: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "m", "messages": messages, "max_tokens": 45, "temperature": 0, **fields}


CHATS: list[dict[str, Any]] = [
    chat(COPY, stream_options=USAGE),
    chat(COPY, stream_options=USAGE, logprobs=True, top_logprobs=3),
    chat(COPY, stream_options=USAGE, stop=["🎉 Zü", "Größenwahn", "naive"], logprobs=True),
    chat(COPY, stop=["ve 😀", "e 🎉"], logprobs=True, stream_options=USAGE),
    chat(COPY, stream_options=USAGE, max_tokens=24),
    chat("Tell me a story.", temperature=1.8, seed=11, extra_body={"ignore_eos": True}),
    chat("Hello!", temperature=1.2, seed=5, presence_penalty=0.7, frequency_penalty=0.9),
]


@pytest.fixture
async def routed(
    cut_router: Callable[..., Any], openai_client: Callable[..., Any]
) -> Callable[..., Any]:
    """A router for both engines, an openai client, and the list of breaks to come."""

    async def start(**options: Any) -> Any:
        router, plan = await cut_router(**options)
        return router, openai_client(router.url), plan

    return start


async def unbroken(client: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """What both engines say of it once they have the prompt in their caches."""
    for _ in range(2):
        await client.chat(**fields)
    whole: dict[str, Any] = await client.chat(**fields)
    return whole


async def kill_at_random(routed: Any, differences: Any, kills: int, seed: int = 0) -> None:
    router, client, plan = await routed()
    wholes = [await unbroken(client, fields) for fields in CHATS]
    draw = random.Random(1000 * seed + kills)
    for number in range(kills):
        which = number % len(CHATS)
        events = wholes[which]["usage"]["completion_tokens"] if wholes[which]["usage"] else 20
        plan.append((draw.randint(1, max(2, events)), draw.choice([0, 0, 1, 17, 40])))
        merged = await client.chat(**CHATS[which])
        assert differences(merged, wholes[which]) == [], (which, number)
        plan.clear()
    moved = await router.metric("stream_migrations_total", outcome="moved")
    begun_anew = await router.metric("retries_total", model="m")
    # An engine that was busy for so long that it was left, beside the breaks
    begun_anew -= await router.metric("retries_total", model="m", reason="suspect")
    print(f"{kills} of {kills} equal, {moved:.0f} of them moved")
    assert moved >= kills * 0.7
    assert begun_anew <= kills
    assert await router.metric("broken_answers_total", model="m") == 0
    assert router.in_flight() == 0
    assert await router.metric("stream_transcript_bytes") == 0


@pytest.mark.slow
async def test_killed_at_random_events(routed: Any, differences: Any) -> None:
    await kill_at_random(routed, differences, 14)


@pytest.mark.slow
async def test_killed_at_two_hundred_random_events(routed: Any, differences: Any) -> None:
    """By four routers, each with breaks of its own: engines compute four streams in a step."""
    await asyncio.gather(*(kill_at_random(routed, differences, 50, n) for n in range(4)))


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "send_message",
        "description": "Send a message to a person",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "text": {"type": "string"}},
            "required": ["to", "text"],
        },
    },
}
ASK = chat("Send Anna the message lamp", tools=[TOOL], stream_options=USAGE, logprobs=True)


@pytest.mark.slow
async def test_a_call_goes_on_where_its_engine_was_killed_in_an_argument(
    routed: Any, differences: Any
) -> None:
    """The tiny model calls by itself; its engine's connection ends within each of its events."""
    router, client, plan = await routed()
    whole = await unbroken(client, ASK)
    [choice] = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"to": "Anna", "text": "lamp"}
    ids = {call["id"]}
    tokens = whole["usage"]["completion_tokens"]
    for events in range(1, tokens + 1):
        plan.append((events, 7 * (events % 3)))
        merged = await client.chat(**ASK)
        [moved] = merged["choices"][0]["message"]["tool_calls"]
        ids.add(moved["id"])
        assert differences(without_ids(merged), without_ids(whole)) == [], events
        plan.clear()
    assert len(ids) == tokens + 1, "ids are the answer's own"
    assert await router.metric("stream_migrations_total", outcome="moved") >= tokens - 2
    assert await router.metric("broken_answers_total", model="m") == 0


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without its calls' ids, which are made of its own."""
    made: dict[str, Any] = copy.deepcopy(answer)
    for choice in made["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            del call["id"]
    return made


@pytest.mark.slow
async def test_an_agent_calls_a_tool_and_answers_with_its_result(routed: Any) -> None:
    router, _, _ = await routed()
    # Without certificates, whose loading takes longer than a test.
    async with openai.AsyncOpenAI(
        base_url=f"{router.url}/v1",
        api_key="x",
        http_client=httpx.AsyncClient(trust_env=False, verify=False),
    ) as client:
        messages: list[Any] = list(ASK["messages"])
        options: dict[str, Any] = {"model": "m", "tools": [TOOL], "temperature": 0}
        first = await client.chat.completions.create(messages=messages, **options)
        [choice] = first.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls or []
        result = {"role": "tool", "tool_call_id": call.id, "content": '{"result": "412"}'}
        messages += [choice.message, result]
        second = await client.chat.completions.create(messages=messages, **options)
        assert second.choices[0].finish_reason == "stop"
        assert "412" in (second.choices[0].message.content or "")
