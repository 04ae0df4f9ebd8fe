"""Ends of requests under way by time, above all by the expiry of their access tokens."""

import json
import time
from types import SimpleNamespace

import pytest

from kvasir_router.proxy.failures import request_deadline

FIRST = {
    "/v1/chat/completions": b'data: {"choices": []}\n\n',
    "/v1/messages": b'event: ping\ndata: {"type": "ping"}\n\n',
    "/v1/responses": (
        b'event: response.created\ndata: {"type": "response.created", "sequence_number": 0}\n\n'
    ),
}


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The day's clock as deadlines see it, which may be set."""
    made = SimpleNamespace(ahead=0.0, monotonic=time.monotonic)
    made.time = lambda: time.time() + made.ahead
    monkeypatch.setattr(request_deadline, "time", made)
    monkeypatch.setattr(request_deadline, "_MAX_WAIT_SECONDS", 0.01)
    return made


@pytest.fixture
async def start(start_replica, start_with_tokens, model_entry):
    """A router with one replica of this script, or none, and tokens with this `at_expiry`."""

    async def start(at_expiry: str, script=None):
        replicas = [] if script is None else [await start_replica(script=script)]
        return await start_with_tokens([model_entry("m", *replicas)], {"at_expiry": at_expiry})

    return start


def request(token_issuer, **fields) -> dict:
    return {
        "json": {"model": "m", "messages": [], "input": "x", "stream": True, **fields},
        "headers": {"Authorization": f"Bearer {token_issuer.token()}"},
    }


@pytest.mark.parametrize("path", FIRST)
async def test_a_stream_ends_with_its_token_in_the_form_of_the_protocol(
    start, client, token_issuer, clock, path, eventually
) -> None:
    async def endless(exchange) -> None:
        await exchange.start_events()
        await exchange.chunk(FIRST[path])
        await exchange.client_left()

    router = await start("end", endless)
    async with client.stream("POST", router.url + path, **request(token_issuer)) as answer:
        parts = answer.aiter_bytes()
        text = await anext(parts)
        assert FIRST[path].startswith(text)
        clock.ahead = 631.0  # ten minutes, and what clocks may differ by
        text += b"".join([part async for part in parts])
    last = text.decode().strip().split("\n\n")[-1]
    event = json.loads(last[last.index("data: ") + 6 :])
    error = event["error"]
    assert "expired while the request was under way" in error["message"]
    if path == "/v1/messages":
        assert last.startswith("event: error\n")
        assert (event["type"], error["type"]) == ("error", "authentication_error")
    elif path == "/v1/responses":
        assert (event["type"], event["code"]) == ("error", "token_expired")
    else:
        assert error["code"] == "token_expired"
    await eventually(lambda: router.in_flight() == 0)


async def test_a_request_that_waits_ends_with_its_token(start, client, token_issuer, clock) -> None:
    async def silent(exchange) -> None:
        clock.ahead = 631.0
        await exchange.client_left()

    router = await start("end", silent)
    url = f"{router.url}/v1/chat/completions"
    answer = await client.post(url, **request(token_issuer, stream=False))
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "token_expired"
    assert answer.headers["www-authenticate"].startswith('Bearer error="invalid_token"')
    assert await router.metric("deadlines_exceeded_total", model="m") == 0


async def test_by_default_what_has_begun_is_finished(start, client, token_issuer, clock) -> None:
    async def script(exchange) -> None:
        clock.ahead = 10_000.0
        await exchange.json(200, {"ok": True})

    router = await start("finish", script)
    url = f"{router.url}/v1/chat/completions"
    answer = await client.post(url, **request(token_issuer, stream=False))
    assert answer.json() == {"ok": True}


async def test_a_deadline_of_the_requests_own_counts_beside_a_token(
    start, client, token_issuer
) -> None:
    async def silent(exchange) -> None:
        await exchange.client_left()

    router = await start("end", silent)
    sent = request(token_issuer)
    sent["headers"]["x-request-timeout"] = "0.05"
    answer = await client.post(f"{router.url}/v1/chat/completions", **sent)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
