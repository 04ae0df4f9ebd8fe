"""Bodies that are scanned as they come: routed, edited and refused as short ones are."""

import json
from typing import Any

import pytest
import yaml
from support.broken_streams import engine, text_of

from kvasir_router.wire.long_bodies import body_scan
from kvasir_router.wire.long_bodies.body_scan import SCANNED_BYTES

pytestmark = pytest.mark.slow

FILLER = "é\n" * SCANNED_BYTES


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    assert body_scan.build(), "these tests need a C compiler"


async def test_a_long_body_is_sent_on_as_it_came(one, client, post) -> None:
    router, replica = await one()
    body = b'{ "messages" : %b , "model":"x", "model" : "m"}' % json.dumps(FILLER).encode()
    response = await client.post(f"{router.url}/v1/chat/completions", content=body)
    assert response.status_code == 200
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    answer = await router.exchange(head + b"Connection: close\r\n\r\n" + chunked)
    assert answer.startswith(b"HTTP/1.1 200")
    assert [request.body for request in replica.requests] == [body, body]


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b'{"prompt":"%b"', "The body is not a JSON object: malformed at byte", None),
        (b'["%b"]', "The body must be a JSON object", None),
        (b'{"prompt":"%b","model":7}', "`model` must be a string.", "model"),
        (b'{"prompt":"%b"}', "`model` is missing", "model"),
        (b'{"prompt":"%b","model":"\xff"}', "The body is not UTF-8", None),
        (b'{"model":"m","prompt":"%b","mode\\u006c":"n"}', "without backslashes", None),
        (b'{"model":"m","prompt":"%b","x":' + b"[" * 1000, "nested too deeply", None),
    ],
)
async def test_bad_long_bodies_are_400(
    one, client, body: bytes, message: str, param: str | None
) -> None:
    router, replica = await one()
    filled = body.replace(b"%b", b"a" * 2 * SCANNED_BYTES)
    response = await client.post(f"{router.url}/v1/completions", content=filled)
    assert response.status_code == 400
    error = response.json()["error"]
    assert message in error["message"]
    assert error["param"] == param
    assert not replica.requests


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False, "x": 1}])
async def test_usage_is_asked_for(one, client, options: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.start_events()
        await exchange.end()

    router, replica = await one(answer)
    given = {} if options is None else {"stream_options": options}
    body = {"model": "m", "prompt": FILLER, "stream": True, **given}
    await client.post(f"{router.url}/v1/completions", json=body)
    wanted = {**body, "stream_options": {**(options or {}), "include_usage": True}}
    assert json.loads(replica.requests[0].body) == wanted


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
async def test_a_broken_stream_of_a_long_prompt_goes_on(routed, ask, options: Any) -> None:
    router, _, b = await routed(engine(events=3), engine())
    expected = text_of(await ask(router, **options))
    resumed = json.loads(b.requests[0].body)
    assert resumed["resume"]["output_token_ids"]
    router, _, b = await routed(engine(events=3), engine())
    assert text_of(await ask(router, padding=FILLER, **options)) == expected
    assert json.loads(b.requests[0].body) == {**resumed, "padding": FILLER}


@pytest.mark.parametrize("field", [{"n": 2}, {"best_of": 2}, {"prompt": ["a", "b"]}])
async def test_what_cannot_move_does_not(routed, ask, field: dict[str, Any]) -> None:
    router, _, b = await routed(engine(events=3), engine())
    await ask(router, padding=FILLER, **field)
    assert await router.metric("stream_migrations_total", outcome="several_choices") == 1
    assert not b.requests


@pytest.fixture
def canary(one, eventually):
    """A router in which all of the canary `c` is the model `m`, and its replica."""

    async def start() -> tuple[Any, Any]:
        router, replica = await one()
        listed = yaml.safe_load(router.config.read_text())
        listed["canaries"] = [{"name": "c", "split": {"m": 1}}]
        router.config.write_text(yaml.safe_dump(listed))
        await eventually(lambda: router.server.fleet.find("c") is not None)
        return router, replica

    return start


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_canary_is_renamed_in_a_form(canary, client, size: int) -> None:
    router, replica = await canary()
    response = await client.post(
        f"{router.url}/v1/audio/transcriptions",
        data={"model": "c", "prompt": "c"},
        files={"file": ("c.wav", b"\r\n--" * size)},
    )
    assert response.status_code == 200
    [request] = replica.requests
    assert b'name="model"\r\n\r\nm\r\n' in request.body
    assert b'name="prompt"\r\n\r\nc\r\n' in request.body
    assert request.body.count(b"\r\n--") >= size


async def test_a_canary_is_renamed(canary, client) -> None:
    router, replica = await canary()
    body = {"model": "c", "messages": [{"role": "user", "content": FILLER}], "user": "u"}
    response = await client.post(f"{router.url}/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert json.loads(replica.requests[0].body) == {**body, "model": "m"}


@pytest.mark.parametrize("unit", [b"{}", b"[[[]]]"])
async def test_a_shorter_body_of_brackets_is_scanned_too(one, client, unit: bytes) -> None:
    router, replica = await one()
    body = b'{"model":"m","messages":[%b]}' % b",".join([unit] * (40_000 // len(unit)))
    response = await client.post(f"{router.url}/v1/chat/completions", content=body)
    assert response.status_code == 200
    assert replica.requests[0].body == body
    broken = body.replace(b"]}", b"}", 1) if unit == b"{}" else body[:-1]
    refused = await client.post(f"{router.url}/v1/chat/completions", content=broken)
    assert "malformed at byte" in refused.json()["error"]["message"]
