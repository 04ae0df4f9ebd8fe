"""Anthropic's client against the router."""

import asyncio
import json
from typing import Any

import anthropic
import pytest

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key

WORDS = ("Hel", "lo")
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def message(text: str, stop: str | None) -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 2}
    made = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    content = [{"type": "text", "text": text}] if text else []
    return made | {"content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


BEGINNING = [
    event("message_start", message=message("", None)),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    *(
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": it})
        for it in WORDS
    ),
]
END = [
    event("content_block_stop", index=0),
    event(
        "message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage={"output_tokens": 2},
    ),
    event("message_stop"),
]


async def answer(exchange: Any) -> None:
    if not json.loads(exchange.request.body).get("stream"):
        await exchange.json(200, message("".join(WORDS), "end_turn"))
        return
    await exchange.start_events()
    for each in BEGINNING + END:
        await exchange.chunk(each)
    await exchange.end()


async def break_off(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.chunk(b"".join(BEGINNING))
    await asyncio.sleep(0.05)
    exchange.reset()


@pytest.fixture
def connect(start_replica, start_router, model_entry, tmp_path):
    """connect(script, key): the replica, and a client with that key of a router that asks for
    "kv-a"."""

    async def start(script: Any, key: str = "kv-a") -> tuple[Any, anthropic.AsyncAnthropic]:
        path = tmp_path / "keys.yaml"
        path.write_bytes(dump_keys(KeyFile(keys=(ApiKey(id="a", hash=hash_key(b"kv-a")),))))
        replica = await start_replica(script=script)
        router = await start_router([model_entry("m", replica)], keys_file=path)
        client = anthropic.AsyncAnthropic(
            base_url=router.url, api_key=key, max_retries=0, timeout=60
        )
        return replica, client

    return start


async def test_a_message_with_the_key_in_its_own_header(connect) -> None:
    replica, client = await connect(answer)
    async with client:
        got = await client.messages.create(model="m", max_tokens=9, messages=MESSAGES)
    assert (got.content[0].text, got.stop_reason) == ("Hello", "end_turn")
    # A key for this router goes no further
    assert replica.requests[0].header("x-api-key") is None
    assert "kv-a" not in str(replica.requests[0])


async def test_streams(connect) -> None:
    _, client = await connect(answer)

    async def one() -> str:
        async with client.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
            return await stream.get_final_text()

    async with client:
        assert await asyncio.gather(*[one() for _ in range(20)]) == ["Hello"] * 20


async def test_a_broken_stream_raises(connect) -> None:
    _, client = await connect(break_off)
    async with client, client.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
        with pytest.raises(anthropic.APIStatusError, match="broke off") as broken:
            await stream.get_final_text()
    assert broken.value.body == {
        "type": "error",
        "error": {"type": "api_error", "message": broken.value.body["error"]["message"]},
    }


@pytest.mark.parametrize(
    ("key", "model", "error", "kind"),
    [
        ("kv-b", "m", anthropic.AuthenticationError, "authentication_error"),
        ("kv-a", "n", anthropic.NotFoundError, "not_found_error"),
        ("kv-a", "", anthropic.BadRequestError, "invalid_request_error"),
    ],
)
async def test_refusals_have_the_protocols_form(
    connect, key: str, model: str, error: type[anthropic.APIStatusError], kind: str
) -> None:
    replica, client = await connect(answer, key)
    async with client:
        with pytest.raises(error) as refused:
            await client.messages.create(model=model, max_tokens=9, messages=MESSAGES)
        with pytest.raises(error):
            await client.messages.count_tokens(model=model, messages=MESSAGES)
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == kind
    assert not replica.requests
