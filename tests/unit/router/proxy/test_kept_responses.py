"""Conversations that go on with what the router keeps: OpenAI's client, scripted engines."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from support.broken_responses import PATH, WORDS, response_engine, response_stream
from support.router import model_entry as own_entry

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.kept_responses.response_store import StoreError
from kvasir_router.options.response_settings import ResponseSettings
from kvasir_router.wire.http_request import Limits

pytestmark = pytest.mark.slow

ANSWERS = iter(range(10**6))


def response_to(body: dict[str, Any], text: str = "Hello") -> dict[str, Any]:
    """What an engine answers."""
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
    return {
        "id": f"resp_{next(ANSWERS)}",
        "object": "response",
        "created_at": 17,
        "status": "completed",
        "model": "m",
        "output": [{**item, "status": "completed"}],
        "previous_response_id": body.get("previous_response_id"),
    }


async def unary(exchange: Any) -> None:
    await exchange.json(200, response_to(json.loads(exchange.request.body)))


@pytest.fixture
async def connect(
    start_replica: Any, start_router: Any, tmp_path: Any
) -> AsyncIterator[Callable[..., Any]]:
    """connect(script): a router that keeps responses, its replica, and client(key)."""
    clients: list[openai.AsyncOpenAI] = []

    async def start(script: Any = unary, entry: Any = own_entry, **options: Any) -> Any:
        path = tmp_path / "keys.yaml"
        keys = tuple(ApiKey(id=name, hash=hash_key(f"kv-{name}".encode())) for name in "ab")
        path.write_bytes(dump_keys(KeyFile(keys=keys)))
        replica = await start_replica(script=script)
        given = {
            "keys_file": path,
            "fleet_secret": "s",
            "responses": ResponseSettings(url=f"sqlite:///{tmp_path}/responses"),
            **options,
        }
        router = await start_router([entry("m", replica)], **given)

        def client(key: str = "a") -> openai.AsyncOpenAI:
            made = openai.AsyncOpenAI(
                base_url=f"{router.url}/v1", api_key=f"kv-{key}", max_retries=0, timeout=60
            )
            clients.append(made)
            return made

        return router, replica, client

    yield start
    for each in clients:
        await each.close()


def asked(replica: Any, number: int = -1) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(replica.requests[number].body)
    return body


async def test_a_conversation_goes_on(connect: Any) -> None:
    router, replica, client = await connect()
    first = await client().responses.create(model="m", input="hi")
    assert asked(replica)["kept_by_router"] is True
    second = await client().responses.create(
        model="m", input=[{"role": "user", "content": "So?"}], previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    texts = [each["content"] for each in asked(replica)["input"]]
    assert [texts[0], texts[1][0]["text"], texts[2]] == ["hi", "Hello", "So?"]
    await client().responses.create(model="m", input="And?", previous_response_id=second.id)
    assert len(asked(replica)["input"]) == 5
    assert await router.metric("responses_kept_total", outcome="kept") == 3


async def test_any_router_goes_on_with_what_another_has_kept(
    connect: Any, redis_server: Any
) -> None:
    responses = ResponseSettings(url=redis_server())
    _, _, client = await connect(responses=responses)
    _, replica, elsewhere = await connect(responses=responses)
    first = await client("a").responses.create(model="m", input="hi")
    again = {"model": "m", "input": "So?", "previous_response_id": first.id}
    await elsewhere("a").responses.create(**again)
    assert [each["role"] for each in asked(replica)["input"]] == ["user", "assistant", "user"]
    with pytest.raises(openai.NotFoundError):
        await elsewhere("b").responses.create(**again)
    await elsewhere("a").responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client("a").responses.retrieve(first.id)


async def test_a_stream_is_kept_before_its_end(connect: Any) -> None:
    async def stream(exchange: Any) -> None:
        body = json.loads(exchange.request.body)
        *events, last = response_stream(body)
        whole = json.dumps(response_to(body, "".join(WORDS)))
        made = b'{"type":"response.completed","sequence_number":13,"response":%b}' % whole.encode()
        await exchange.start_events()
        for event in events:
            await exchange.chunk(event)
        last = last[: last.index(b"data: ")] + b"data: " + made + b"\n\n"
        await exchange.chunk(last[:40])
        await exchange.chunk(last[40:])
        await exchange.end()

    _, replica, client = await connect(stream)
    events = [
        each async for each in await client().responses.create(model="m", input="hi", stream=True)
    ]
    assert events[-1].type == "response.completed"
    previous = events[-1].response.id
    again = await client().responses.create(
        model="m", input="So?", previous_response_id=previous, stream=True
    )
    assert [each.type async for each in again][-1] == "response.completed"
    assert asked(replica)["input"][1]["content"][0]["text"] == "".join(WORDS)


async def test_a_stream_that_moves_is_kept_once(connect: Any, two: Any, tmp_path: Any) -> None:
    responses = ResponseSettings(url=f"sqlite:///{tmp_path}/responses")
    router, _, _ = await two(
        response_engine(events=6),
        response_engine(),
        policy="round_robin",
        fleet_secret="s",
        responses=responses,
    )
    client = openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0)
    async with client:
        stream = await client.responses.create(model="m", input="hi", stream=True)
        assert [each.type async for each in stream][-1] == "response.completed"
    # This engine's response has no status, so it is no whole one
    assert await router.metric("responses_kept_total", outcome="failed") == 0
    assert await router.metric("stream_migrations_total", outcome="moved") == 1


async def test_a_long_answer_is_kept(connect: Any) -> None:
    async def long(exchange: Any) -> None:
        body = response_to(json.loads(exchange.request.body), "long " * 100_000)
        await exchange.json(200, body)

    _, _, client = await connect(long)
    made = await client().responses.create(model="m", input="hi")
    assert (await client().responses.retrieve(made.id)).output_text == made.output_text


async def test_a_long_input_goes_on_and_is_kept(connect: Any) -> None:
    """One that is scanned as it comes, and edited where it lies."""
    _, replica, client = await connect()
    first = await client().responses.create(model="m", input="a" * 600_000)
    second = await client().responses.create(
        model="m", input="b" * 600_000, previous_response_id=first.id
    )
    await client().responses.create(model="m", input="c", previous_response_id=second.id)
    items = asked(replica)["input"]
    texts = [each["content"] for each in items if each["role"] == "user"]
    assert [(each[0], len(each)) for each in texts] == [("a", 600_000), ("b", 600_000), ("c", 1)]


async def test_get_delete_and_cancel(connect: Any) -> None:
    _, _, client = await connect()
    mine, other = client("a"), client("b")
    made = await mine.responses.create(model="m", input="hi")
    assert (await mine.responses.retrieve(made.id)).output_text == "Hello"
    for call in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="is another API key's"):
            await call(made.id)
    with pytest.raises(openai.BadRequestError, match="has ended; only responses that run in the"):
        await mine.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="stream is not supported here"):
        await mine.responses.retrieve(made.id, stream=True)
    await mine.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await mine.responses.retrieve(made.id)


async def test_input_items_are_those_of_the_whole_conversation(connect: Any) -> None:
    _, _, client = await connect()
    first = await client().responses.create(model="m", input="hi")
    second = await client().responses.create(model="m", input="So?", previous_response_id=first.id)
    listed = client().responses.input_items.list
    items = [each async for each in await listed(second.id, order="asc", limit=2)]
    texts = [each.content[0].text for each in items]
    assert texts == ["hi", "Hello", "So?"]  # over two pages
    assert [each.role for each in items] == ["user", "assistant", "user"]
    assert [each async for each in await listed(second.id)] == items[::-1]
    with pytest.raises(openai.BadRequestError, match="limit must be 1 to 100"):
        await listed(second.id, limit=0)
    with pytest.raises(openai.NotFoundError):
        await client("b").responses.input_items.list(second.id)


async def test_of_another_key_nothing_is_told(connect: Any) -> None:
    _, replica, client = await connect()
    made = await client("a").responses.create(model="m", input="hi")
    for previous in (made.id, "resp_none", "x" * 3000):
        with pytest.raises(openai.NotFoundError) as refused:
            await client("b").responses.create(
                model="m", input="So?", previous_response_id=previous
            )
        error: Any = refused.value.body
        assert error["param"] == "previous_response_id"
        assert error["code"] == "response_not_found"
    assert len(replica.requests) == 1


async def test_store_false_keeps_nothing(connect: Any) -> None:
    _, replica, client = await connect()
    made = await client().responses.create(model="m", input="hi", store=False)
    assert asked(replica)["kept_by_router"] is True
    with pytest.raises(openai.NotFoundError):
        await client().responses.retrieve(made.id)


async def test_what_failed_is_not_kept(connect: Any) -> None:
    async def failed(exchange: Any) -> None:
        await exchange.json(200, {**response_to({}), "id": "resp_f", "status": "failed"})

    _, _, client = await connect(failed)
    assert (await client().responses.create(model="m", input="hi")).status == "failed"
    with pytest.raises(openai.NotFoundError):
        await client().responses.retrieve("resp_f")


async def test_a_store_that_fails_costs_no_answer(connect: Any) -> None:
    router, _, client = await connect()
    made = await client().responses.create(model="m", input="hi")

    async def broken(*_: Any) -> Any:
        raise StoreError("The disk is gone.")

    store = router.server.gateway.responses.store
    store.put = store.find = broken
    assert (await client().responses.create(model="m", input="hi")).output_text == "Hello"
    assert await router.metric("responses_kept_total", outcome="failed") == 1
    with pytest.raises(openai.InternalServerError, match="cannot reach the responses") as refused:
        await client().responses.create(model="m", input="So?", previous_response_id=made.id)
    assert refused.value.status_code == 503


async def test_a_store_without_room_costs_no_answer(connect: Any, tmp_path: Any) -> None:
    async def long(exchange: Any) -> None:
        await exchange.json(200, response_to({}, os.urandom(4000).hex()))

    small = ResponseSettings(url=f"sqlite:///{tmp_path}/small", total_bytes=2000)
    router, _, client = await connect(long, responses=small)
    made = await client().responses.create(model="m", input="hi")
    assert len(made.output_text) == 8000
    assert await router.metric("responses_kept_total", outcome="failed") == 1
    with pytest.raises(openai.NotFoundError, match="it was not kept, is too old"):
        await client().responses.create(model="m", input="So?", previous_response_id=made.id)


async def test_engines_of_others_get_what_was_sent(connect: Any) -> None:
    def entry(name: str, *replicas: Any) -> Any:
        made = own_entry(name, *replicas)
        for each in made["replicas"]:
            each["engine"] = "vllm"
        return made

    _, replica, client = await connect(entry=entry, shared_prompts=True)
    await client().responses.create(model="m", input="hi", previous_response_id="resp_theirs")
    body = asked(replica)
    assert body["previous_response_id"] == "resp_theirs"
    assert "kept_by_router" not in body


async def test_a_conversation_that_is_too_long_is_refused(connect: Any) -> None:
    _, _, client = await connect(limits=Limits(body_bytes=2000))
    made = await client().responses.create(model="m", input="x" * 1500)
    with pytest.raises(openai.APIStatusError, match="has become longer than the 2000 bytes"):
        await client().responses.create(model="m", input="y" * 1000, previous_response_id=made.id)


async def test_earlier_items_count_as_bytes_of_a_body(connect: Any) -> None:
    router, _, client = await connect(limits=Limits(buffered_bytes=60_000))
    made = await client().responses.create(model="m", input="x" * 50_000)
    with pytest.raises(openai.InternalServerError, match="all the bytes of requests") as refused:
        await client().responses.create(model="m", input="y" * 15_000, previous_response_id=made.id)
    assert refused.value.status_code == 503
    await client().responses.create(model="m", input="So?", previous_response_id=made.id)
    assert router.server.gateway.bodies.used == 0


async def test_without_a_store(one: Any, client: Any) -> None:
    router, replica = await one()
    answer = await client.get(f"{router.url}{PATH}/resp_1")
    assert answer.status_code == 404
    assert "--response-store" in answer.json()["error"]["message"]
    body = {"model": "m", "input": "hi", "previous_response_id": "resp_1"}
    await client.post(router.url + PATH, json=body)
    assert asked(replica) == body
    await client.post(router.url + PATH, json={**body, "kept_by_router": True})
    assert asked(replica)["kept_by_router"] is False


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/resp_1", 405),
        ("GET", "/resp_1/cancel", 405),
        ("DELETE", "/resp_1/input_items", 405),
        ("GET", "/resp_1/others", 404),
        ("DELETE", "", 405),
    ],
)
async def test_other_methods(
    connect: Any, client: Any, method: str, path: str, status: int
) -> None:
    router, _, _ = await connect()
    answer = await client.request(
        method, f"{router.url}{PATH}{path}", headers={"Authorization": "Bearer kv-a"}
    )
    assert answer.status_code == status
    code = {404: "not_found", 405: "method_not_allowed"}[status]
    assert answer.json()["error"]["code"] == code
    unauthorised = await client.request(method, f"{router.url}{PATH}{path}")
    assert unauthorised.status_code in (401, 405)


async def test_a_client_that_leaves_in_between(connect: Any) -> None:
    router, replica, client = await connect()
    made = await client().responses.create(model="m", input="hi")
    held = asyncio.Event()
    store = router.server.gateway.responses.store
    find = store.find

    async def late(*given: Any) -> Any:
        await held.wait()
        return await find(*given)

    store.find = late
    with pytest.raises(openai.APITimeoutError):
        await (
            client()
            .with_options(timeout=0.2)
            .responses.create(model="m", input="So?", previous_response_id=made.id)
        )
    held.set()
    store.find = find
    await client().responses.create(model="m", input="hi")
    assert len(replica.requests) == 2
    assert router.in_flight() == 0
