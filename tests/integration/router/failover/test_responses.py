"""OpenAI's client and its Responses API, through a router, of engines that end."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from kvasir_router.options.response_settings import ResponseSettings

pytestmark = pytest.mark.slow

COPY = "Copy: über Größe naïve 😀 🎉 Zürich"
BODY: dict[str, Any] = {"model": "m", "input": COPY, "temperature": 0, "max_output_tokens": 45}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Bergen"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
async def routed(cut_router: Callable[..., Any]) -> AsyncIterator[Callable[..., Any]]:
    """A router for both engines, OpenAI's client, and the list of breaks to come."""
    clients: list[openai.AsyncOpenAI] = []

    async def start(**options: Any) -> Any:
        router, plan = await cut_router(**options)
        client = openai.AsyncOpenAI(
            base_url=f"{router.url}/v1", api_key="k", max_retries=0, timeout=120
        )
        clients.append(client)
        return router, client, plan

    yield start
    for each in clients:
        await each.close()


async def streamed(client: openai.AsyncOpenAI, body: dict[str, Any]) -> tuple[Response, int]:
    """The final response of a stream whose events agree with it, and how many there were."""
    texts: dict[str, str] = {}
    number, last = 0, None
    async for event in await client.responses.create(**body, stream=True):
        EVENTS.validate_python(event.to_dict())
        assert event.sequence_number == number
        number += 1
        if "delta" in event.type:
            texts[event.item_id] = texts.get(event.item_id, "") + event.delta
        last = event
    assert last is not None
    assert last.type in ("response.completed", "response.incomplete")
    for item in last.response.output:
        told = item.arguments if item.type == "function_call" else item.content[0].text
        assert texts[item.id] == told
    return last.response, number


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_output_tokens": 20},
        {"tools": [TOOL], "tool_choice": "required", "input": "Oslo?", "max_output_tokens": 90},
    ],
)
async def test_a_stream_goes_on_wherever_it_breaks(routed: Any, fields: dict[str, Any]) -> None:
    router, client, plan = await routed()
    body = {**BODY, **fields}
    for _ in range(2):
        whole, number = await streamed(client, body)
    breaks = range(1, number, 3)
    for events in breaks:
        plan.append((events, events % 20))
        made, _ = await streamed(client, body)
        assert made.output_text == whole.output_text, events
        assert made.status == whole.status
        assert [item.type for item in made.output] == [item.type for item in whole.output]
        assert made.usage.output_tokens == whole.usage.output_tokens
        plan.clear()
    assert await router.metric("stream_migrations_total", outcome="moved") >= len(breaks) // 2
    assert await router.metric("broken_answers_total", model="m") == 0


class City(BaseModel):
    name: Literal["Oslo", "Bergen"]


async def test_unary_parsed_and_with_tools(routed: Any) -> None:
    _, client, _ = await routed()
    response = await client.responses.create(**BODY)
    Response.model_validate(response.to_dict())
    assert response.output_text
    parsed = await client.responses.parse(**{**BODY, "max_output_tokens": 300}, text_format=City)
    assert isinstance(parsed.output_parsed, City)
    items: Any = [{"role": "user", "content": "Oslo?"}]
    ask = {**BODY, "tools": [TOOL], "max_output_tokens": 200}
    called = await client.responses.create(**{**ask, "input": items}, tool_choice="required")
    call = next(item for item in called.output if item.type == "function_call")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Bergen")
    items += called.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    assert (await client.responses.create(**{**ask, "input": items})).status


async def test_refusals_are_openais(routed: Any) -> None:
    _, client, _ = await routed()
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.responses.create(**{**BODY, "model": "other"})
    with pytest.raises(openai.BadRequestError, match="web_search"):
        await client.responses.create(**BODY, tools=[{"type": "web_search"}])
    with pytest.raises(openai.BadRequestError, match="needs a router that keeps responses"):
        await client.responses.create(**BODY, previous_response_id="resp_1")


async def test_a_conversation_goes_on_elsewhere_and_after_a_restart(
    routed: Any, tmp_path: Any
) -> None:
    responses = ResponseSettings(url=f"sqlite:///{tmp_path}/responses")
    _, client, plan = await routed(responses=responses)
    first = await client.responses.create(**BODY)
    assert first.to_dict()["store"] is True
    plan.append((12, 0))  # the next stream breaks, and is kept all the same
    asked = {**BODY, "input": "Once more.", "previous_response_id": first.id}
    second, _ = await streamed(client, asked)
    assert second.previous_response_id == first.id
    _, again, _ = await routed(responses=responses)  # another life of the router
    found = await again.responses.retrieve(second.id)
    assert found.output_text == second.output_text
    third = await again.responses.create(
        **{**BODY, "input": "And now?"}, previous_response_id=second.id
    )
    talk: Any = [
        {"role": "user", "content": COPY},
        *first.output,
        {"role": "user", "content": "Once more."},
        *second.output,
        {"role": "user", "content": "And now?"},
    ]
    whole = await again.responses.create(**{**BODY, "input": talk})
    assert third.usage.input_tokens == whole.usage.input_tokens
    assert third.output_text == whole.output_text
    assert whole.usage.input_tokens_details.cached_tokens > 0
    await again.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        await again.responses.create(**BODY, previous_response_id=second.id)
