"""Anthropic's client and its Messages API, through a router, of engines that end."""

import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest

pytestmark = pytest.mark.slow

COPY = "Copy: über Größe naïve 😀 🎉 Zürich"
SEND = "Send Anna the message lamp"
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": COPY}],
    "max_tokens": 45,
    "extra_body": {"temperature": 0},
}
TOOL: Any = {
    "name": "send_message",
    "description": "Send a message to a person",
    "input_schema": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "text": {"type": "string"}},
        "required": ["to", "text"],
    },
}


@pytest.fixture
async def routed(cut_router: Callable[..., Any]) -> AsyncIterator[Callable[..., Any]]:
    """A router for both engines, Anthropic's client, and the list of breaks to come."""
    clients: list[anthropic.AsyncAnthropic] = []

    async def start(**options: Any) -> Any:
        router, plan = await cut_router(**options)
        client = anthropic.AsyncAnthropic(
            base_url=router.url, api_key="k", max_retries=0, timeout=120
        )
        clients.append(client)
        return router, client, plan

    yield start
    for each in clients:
        await each.close()


async def events_of(client: anthropic.AsyncAnthropic, body: dict[str, Any]) -> list[Any]:
    """The events of a stream as the client reads them, without the ids that are made anew for
    each message."""
    made = []
    async for event in await client.messages.create(**body, stream=True):
        made.append(event.to_dict())
        for named in (made[-1].get("message"), made[-1].get("content_block")):
            if named is not None:
                named.pop("id", None)
    return made


def joined(events: list[Any]) -> list[Any]:
    """The events with neighbouring deltas of a block as one."""
    made: list[Any] = []
    for event in copy.deepcopy(events):
        last = made[-1] if made else {"type": ""}
        if event["type"] != "content_block_delta" or last["type"] != event["type"]:
            made.append(event)
            continue
        assert last["index"] == event["index"]
        [field] = event["delta"].keys() - {"type"}
        last["delta"][field] += event["delta"][field]
    return made


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 20},
        {"stop_sequences": ["ve 😀", "e 🎉"]},
        {"messages": [{"role": "user", "content": SEND}], "tools": [TOOL], "max_tokens": 90},
    ],
)
async def test_a_stream_goes_on_wherever_it_breaks(routed: Any, fields: dict[str, Any]) -> None:
    router, client, plan = await routed()
    body = {**BODY, **fields}
    for _ in range(3):  # both engines have the prompt by then
        whole = await events_of(client, body)
    if "tools" in fields:
        assert {"tool_use"} <= {
            each["content_block"]["type"] for each in whole if each["type"] == "content_block_start"
        }
    breaks = range(1, len(whole), 3)
    for events in breaks:
        plan.append((events, events % 20))
        assert joined(await events_of(client, body)) == joined(whole), events
        plan.clear()
    assert await router.metric("stream_migrations_total", outcome="moved") >= len(breaks) // 2
    assert await router.metric("broken_answers_total", model="m") == 0


async def test_the_client_joins_a_broken_stream_to_the_unary_message(routed: Any) -> None:
    _, client, plan = await routed()
    body = {**BODY, "messages": [{"role": "user", "content": SEND}], "tools": [TOOL]}
    for _ in range(3):
        unary = await client.messages.create(**body)
    [call] = [block for block in unary.content if block.type == "tool_use"]
    assert call.input == {"to": "Anna", "text": "lamp"}
    plan.append((11, 5))
    async with client.messages.stream(**body) as stream:
        made = await stream.get_final_message()
    [moved] = [block for block in made.content if block.type == "tool_use"]
    assert (moved.name, moved.input) == (call.name, call.input)
    assert (made.stop_reason, made.usage.output_tokens) == ("tool_use", unary.usage.output_tokens)
    assert made.usage.input_tokens == unary.usage.input_tokens
