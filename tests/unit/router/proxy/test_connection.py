"""A client connection: order, limits, deadlines and ends."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvasir_router.options.router_settings import Timeouts
from kvasir_router.wire.http_request import Limits

BODY = b'{"model": "m"}'


async def echo_later(exchange: Any) -> None:
    """Later requests are answered sooner, if they are sent at once."""
    number = json.loads(exchange.request.body)["n"]
    await asyncio.sleep(0.05 / (number + 1))
    await exchange.json(200, {"n": number})


def statuses(answer: bytes) -> list[int]:
    parts = answer.split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts]


async def test_pipelined_requests_are_answered_in_order(one, post) -> None:
    router, _ = await one(script=echo_later)
    requests = [post(b'{"model": "m", "n": %d}' % n) for n in range(5)]
    local = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = await router.exchange(b"".join(requests[:3]) + local + b"".join(requests[3:]) + last)
    bodies = [part.split(b"\r\n\r\n", 1)[1] for part in answer.split(b"HTTP/1.1 200")[1:]]
    assert [json.loads(body).get("n", "health") for body in bodies] == [
        *(0, 1, 2, "health"),
        *(3, 4, "health"),
    ]


async def test_a_flood_of_pipelined_requests_is_held_back_and_answered(one, post) -> None:
    router, replica = await one()
    reader, writer = await router.connect()
    count, request = 3000, post(BODY + b" " * 500)

    async def send() -> None:
        for _ in range(count):
            writer.write(request)
            await writer.drain()

    sending = asyncio.create_task(send())
    received = 0
    while received < count:
        received += (await reader.read(1 << 16)).count(b"HTTP/1.1 200")
    await sending
    assert len(replica.requests) == count
    writer.close()


async def test_expect_continue(one) -> None:
    router, replica = await one()
    reader, writer = await router.connect()
    writer.write(
        b"POST /score HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(BODY)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert replica.requests[0].header("expect") is None
    writer.close()


class TestBudget:
    """Of the bodies that a process holds."""

    HEAD = b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

    async def test_what_is_too_much_is_refused_and_short_requests_are_served(
        self, one, post, eventually
    ) -> None:
        router, _ = await one(limits=Limits(buffered_bytes=100_000))
        bodies = router.server.gateway.bodies
        held = [await router.connect() for _ in range(2)]
        for _, writer in held:
            writer.write(self.HEAD % 50_000 + b"x" * 45_000)
        await eventually(lambda: bodies.used == 90_000)
        assert await router.metric("body_bytes") == 90_000
        refused = await router.exchange(self.HEAD % 50_000 + b"x" * 50_000)
        assert statuses(refused) == [503]
        assert b"\r\nRetry-After: 1\r\n" in refused
        assert bodies.used == 90_000
        assert statuses(await router.exchange(post(BODY, b"Connection: close"))) == [200]
        for _, writer in held:
            writer.close()
        await eventually(lambda: bodies.used == 0)
        body = BODY + b" " * 50_000
        assert statuses(await router.exchange(post(body, b"Connection: close"))) == [200]
        await eventually(lambda: bodies.used == 0)

    async def test_a_body_counts_until_its_request_is_answered(self, one, post, eventually) -> None:
        go = asyncio.Event()

        async def held(exchange: Any) -> None:
            await go.wait()
            await exchange.json(200, {})

        router, replica = await one(held)
        bodies = router.server.gateway.bodies
        reader, writer = await router.connect()
        writer.write(post(BODY) + post(BODY))
        await eventually(lambda: len(replica.requests) == 1)
        assert bodies.used == 2 * len(BODY)
        leaving = await router.connect()
        leaving[1].write(post(BODY))
        await eventually(lambda: bodies.used == 3 * len(BODY))
        leaving[1].transport.abort()
        await eventually(lambda: bodies.used == 2 * len(BODY))
        go.set()
        for _ in range(2):
            await reader.readuntil(b"{}")
        await eventually(lambda: bodies.used == 0)
        writer.close()


async def test_no_continue_for_a_body_that_is_too_large(one) -> None:
    router, _ = await one(limits=Limits(body_bytes=10))
    answer = await router.exchange(
        b"POST /score HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n"
    )
    assert statuses(answer) == [413]


async def test_head_has_the_header_alone(one) -> None:
    router, _ = await one()
    answer = await router.exchange(b"HEAD /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b"Content-Length: 15" in head
    assert body == b""


async def test_options_tells_the_methods(one) -> None:
    router, _ = await one()
    answer = await router.exchange(b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert statuses(answer) == [200]
    assert b"Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n" in answer
    assert b"access-control" not in answer.lower()


async def test_a_refusal_comes_after_the_answers_before_it(one, post) -> None:
    router, replica = await one()
    answer = await router.exchange(post(BODY) + b"POST / HTTP/1.1\r\nbad header\r\n\r\n")
    assert statuses(answer) == [200, 400]
    assert len(replica.requests) == 1


async def test_nothing_is_read_after_a_refusal(one, post) -> None:
    router, replica = await one()
    answer = await router.exchange(b"POST / HTTP/1.1\r\nX : a\r\n\r\n" + post(BODY))
    assert statuses(answer) == [400]
    assert replica.requests == []


async def test_what_follows_a_refusal_that_waits_for_its_turn_is_dropped(one, post) -> None:
    async def wait(exchange: Any) -> None:
        await going_on.wait()
        await exchange.json(200, {})

    going_on = asyncio.Event()
    router, _ = await one(script=wait)
    reader, writer = await router.connect()
    bad = b"GET /health HTTP/1.1\r\nHost: a\r\nExpect: nothing\r\n\r\n"
    for data in (post(BODY), bad, b"more", post(BODY)):
        writer.write(data)
        await asyncio.sleep(0.1)
    going_on.set()
    assert statuses(await asyncio.wait_for(reader.read(), 10)) == [200, 417]
    writer.close()


async def test_a_client_reads_why_its_large_body_is_refused(one, client) -> None:
    router, _ = await one(limits=Limits(body_bytes=1_000_000))
    response = await client.post(f"{router.url}/score", content=b"x" * 6_000_000)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


async def test_too_many_connections(one) -> None:
    router, _ = await one(max_connections=2)
    first, second = await router.connect(), await router.connect()
    answer = await router.exchange(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    assert statuses(answer) == [503]
    first[1].close()
    await asyncio.sleep(0.05)
    answer = await router.exchange(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert statuses(answer) == [200]
    second[1].close()


class TestDeadlines:
    async def test_a_header_that_does_not_end(self, one) -> None:
        router, _ = await one(timeouts=Timeouts(header=0.2))
        reader, writer = await router.connect()
        answer = asyncio.create_task(reader.read())
        writer.write(b"POST /score HTTP/1.1\r\n")
        while not answer.done():
            writer.write(b"X: a\r\n")
            await asyncio.sleep(0.02)
        assert statuses(await answer) == [408]
        writer.close()

    async def test_a_body_that_stops(self, one) -> None:
        router, _ = await one(timeouts=Timeouts(body=0.2))
        answer = await router.exchange(
            b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{"
        )
        assert statuses(answer) == [408]

    async def test_a_body_that_comes_byte_by_byte(self, one) -> None:
        router, _ = await one(timeouts=Timeouts(body=0.3, body_rate=1e6))
        reader, writer = await router.connect()
        answer = asyncio.create_task(reader.read())
        writer.write(b"POST /score HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            if answer.done():
                break
            writer.write(b" ")
            await asyncio.sleep(0.02)
        assert statuses(await answer) == [408]
        writer.close()

    async def test_a_connection_that_says_nothing(self, one) -> None:
        router, _ = await one(timeouts=Timeouts(header=0.2))
        assert await router.exchange(b"") == b""

    async def test_a_connection_that_is_idle_after_a_request(self, one, post) -> None:
        router, _ = await one(timeouts=Timeouts(keep_alive=0.2))
        assert statuses(await router.exchange(post(BODY))) == [200]

    @pytest.mark.slow
    async def test_a_long_answer_has_none(self, one, post) -> None:
        async def slow(exchange: Any) -> None:
            await asyncio.sleep(1.2)
            await exchange.json(200, {})

        short = Timeouts(header=0.1, body=0.1, keep_alive=0.1, send=0.1, upstream_idle=0.1)
        router, _ = await one(script=slow, timeouts=short)
        assert statuses(await router.exchange(post(BODY))) == [200]


class TestStop:
    async def test_answers_say_close_and_ready_fails(self, one, client, post) -> None:
        router, _ = await one()
        assert (await client.get(f"{router.url}/ready")).status_code == 200
        router.server.gateway.stopping = True
        answer = await router.exchange(post(BODY))
        assert statuses(answer) == [200]
        assert b"Connection: close\r\n" in answer
        assert (await client.get(f"{router.url}/ready")).status_code == 503
        assert (await client.get(f"{router.url}/health")).status_code == 200

    async def test_what_outlives_the_drain_without_a_byte_is_told_to_ask_again(
        self, one, post, scripts, eventually
    ) -> None:
        router, replica = await one(script=scripts.silent)
        reader, writer = await router.connect()
        writer.write(post(BODY))
        await eventually(lambda: len(replica.requests) == 1)
        await router.server.gateway.drain(0.05)
        answer = await reader.read()
        assert statuses(answer) == [503]
        assert b"router_stopping" in answer
        assert b"Retry-After: 1\r\n" in answer
        writer.close()

    async def test_what_outlives_the_drain_ends_with_an_error_event(self, one, post) -> None:
        async def endless(exchange: Any) -> None:
            await exchange.start_events()
            await exchange.chunk(b"data: 1\n\n")
            await exchange.client_left()

        router, _ = await one(script=endless)
        reader, writer = await router.connect()
        writer.write(post(BODY))
        await reader.readuntil(b"data: 1\n\n")
        await router.server.gateway.drain(0.05)
        rest = await reader.read()
        assert b"router_stopping" in rest
        assert rest.endswith(b"\r\n0\r\n\r\n")
        writer.close()


@given(data=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_random_bytes_are_refused_or_wait_for_more(start_fuzzed, data: list[bytes]) -> None:
    router = await start_fuzzed()
    reader, writer = await router.connect()
    for part in data:
        writer.write(part)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 30)
    assert all(status >= 400 for status in statuses(answer))
    writer.close()
    assert b"200" in await router.exchange(b"GET /health HTTP/1.0\r\n\r\n")


@pytest.fixture
def start_fuzzed(start_router):
    """One router for all examples."""
    running: list[Any] = []

    async def start() -> Any:
        if not running:
            running.append(await start_router([]))
        return running[0]

    return start
