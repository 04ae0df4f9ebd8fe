"""Answers that break after their head was read: what of them the client may have had by then.

Each write of an engine is read by the router before the next one is made, so that a fault comes
in a read of its own.
"""

import asyncio
import fcntl
import json
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from kvasir_router.options.failover_settings import Failover
from kvasir_router.options.router_settings import QueueLimits, Timeouts
from kvasir_router.proxy.attempts.attempt import HELD_BYTES

pytestmark = pytest.mark.slow

ENDS = ("bad framing", "reset", "no more than a chunk's size")
UNARY = b'{"model": "m", "prompt": "a"}'
STREAM = b'{"model": "m", "prompt": "a", "stream": true}'

CHUNKED = b"Transfer-Encoding: chunked\r\n"
EVENTS = b"Content-Type: text/event-stream\r\n" + CHUNKED
JSON = b"Content-Type: application/json; charset=utf-8\r\n" + CHUNKED
TEXT = b"Content-Type: text/plain\r\n" + CHUNKED


def unsent(exchange: Any) -> int:
    """Bytes of the engine's that have not come to the router's machine."""
    return queued(exchange.writer.get_extra_info("socket"), termios.TIOCOUTQ)


def unread(router: Any) -> int:
    """Bytes of engines that the router has not read."""
    relays = [
        client._relay for client in router.server.gateway.clients.connections if client._relay
    ]
    attempts = [relay._attempts._running.current for relay in relays]
    transports = [each._connection._transport for each in attempts if each and each._connection]
    sockets = [each.get_extra_info("socket") for each in transports if each]
    return sum(queued(each, termios.FIONREAD) for each in sockets)


def queued(sock: Any, request: int) -> int:
    if sock.fileno() < 0:
        return 0
    return struct.unpack("i", fcntl.ioctl(sock.fileno(), request, b"\0\0\0\0"))[0]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def breaking(eventually) -> Callable[..., Any]:
    """A script: an answer with these header lines and these parts, and then one of ENDS or b""."""

    def make(lines: bytes, *parts: bytes, end: str = "", router: list[Any]) -> Any:
        async def answer(exchange: Any) -> None:
            head = b"HTTP/1.1 200 OK\r\nX-Engine: bad\r\n%b\r\n" % lines
            for part in (head, *parts):
                await exchange.write(part)
                await eventually(lambda: unsent(exchange) == 0 == unread(router[0]))
            if end == "bad framing":
                await exchange.write(b"zz\r\nno chunk\r\n")
            elif end == "no more than a chunk's size":
                await exchange.write(b"10\r\n")
            exchange.reset()

        return answer

    return make


@pytest.fixture
def beside_a_good_one(two, scripts, breaking) -> Callable[..., Awaitable[Any]]:
    """A router whose first request goes to an engine that answers so; the second one is well."""

    async def start(
        lines: bytes, *parts: bytes, end: str = "", good: Any = scripts.ok, **options: Any
    ) -> Any:
        holder: list[Any] = []
        bad = breaking(lines, *parts, end=end, router=holder)
        router, a, b = await two(bad, good, policy="round_robin", **options)
        holder.append(router)
        return router, a, b

    return start


async def events(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.chunk(b"data: 1\n\n")
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.end()


class TestOnlyAHead:
    """Nothing has gone to the client: another engine's answer is the whole of it."""

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize("lines", [EVENTS, JSON, TEXT, CHUNKED])
    @pytest.mark.parametrize("body", [UNARY, STREAM])
    async def test_of_a_chunked_answer(
        self, beside_a_good_one, client, lines: bytes, body: bytes, end: str
    ) -> None:
        router, a, b = await beside_a_good_one(lines, end=end)
        response = await client.post(f"{router.url}/v1/completions", content=body)
        assert (response.status_code, response.json()) == (200, {"ok": True})
        assert response.headers["content-type"] == "application/json"
        assert "x-engine" not in response.headers
        assert len(a.requests) == len(b.requests) == 1
        assert await router.metric("broken_answers_total", model="m") == 0
        assert router.in_flight() == 0

    @pytest.mark.parametrize("length", [10, HELD_BYTES + 1])
    async def test_of_an_answer_with_a_length(self, beside_a_good_one, client, length: int) -> None:
        router, _, _ = await beside_a_good_one(b"Content-Length: %d\r\n" % length, end="reset")
        response = await client.post(f"{router.url}/v1/completions", content=UNARY)
        assert (response.status_code, response.json()) == (200, {"ok": True})

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize("parts", [(), (chunk(b"data: half an ev"),)])
    async def test_of_a_stream(
        self, beside_a_good_one, client, parts: tuple[bytes, ...], end: str
    ) -> None:
        router, a, _ = await beside_a_good_one(EVENTS, *parts, end=end, good=events)
        response = await client.post(f"{router.url}/v1/completions", content=STREAM)
        assert response.text == "data: 1\n\ndata: [DONE]\n\n"
        assert "x-engine" not in response.headers
        assert len(a.requests) == 1

    async def test_of_a_stream_that_ends_without_an_event(self, beside_a_good_one, client) -> None:
        router, _, _ = await beside_a_good_one(EVENTS, b"0\r\n\r\n", good=events)
        response = await client.post(f"{router.url}/v1/completions", content=STREAM)
        assert response.text == "data: 1\n\ndata: [DONE]\n\n"
        assert await router.metric("retries_total", reason="unfinished") == 1

    @pytest.mark.parametrize("lines", [EVENTS, JSON, TEXT])
    async def test_where_nobody_else_can_it_is_an_error(self, one, breaking, client, lines) -> None:
        holder: list[Any] = []
        router, _ = await one(breaking(lines, end="bad framing", router=holder))
        holder.append(router)
        response = await client.post(f"{router.url}/v1/completions", content=STREAM)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_not_ready"
        assert router.in_flight() == 0

    async def test_the_deadline_is_an_error(self, one, client) -> None:
        async def only_a_head(exchange: Any) -> None:
            await exchange.start_events()
            await exchange.client_left()

        router, _ = await one(only_a_head, failover=Failover(request_timeout=0.1))
        response = await client.post(f"{router.url}/v1/completions", content=STREAM)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"

    async def test_a_suspects_request_goes_elsewhere(
        self, two, scripts, client, eventually
    ) -> None:
        async def hangs(exchange: Any) -> None:
            await exchange.start_events()
            await eventually(lambda: unsent(exchange) == 0 == unread(router))
            replica = router.replica("m", "r0")
            replica.observed(type(replica.health)("suspect"))
            replica.observed(type(replica.health)("suspect"))
            await exchange.client_left()

        router, _, _ = await two(hangs, scripts.ok, policy="round_robin")
        response = await client.post(f"{router.url}/v1/completions", content=STREAM)
        assert (response.status_code, response.json()) == (200, {"ok": True})


class TestUnary:
    @pytest.mark.parametrize("end", ENDS)
    async def test_json_that_breaks_is_replaced(self, beside_a_good_one, client, end: str) -> None:
        first = chunk(b'{"choices": [{"text": "wro')
        router, a, b = await beside_a_good_one(JSON, first, end=end)
        response = await client.post(f"{router.url}/v1/completions", content=UNARY)
        assert (response.status_code, response.json()) == (200, {"ok": True})
        assert len(a.requests) == len(b.requests) == 1
        assert await router.metric("broken_answers_total", model="m") == 0

    async def test_json_that_is_whole_gets_a_length(self, beside_a_good_one, client) -> None:
        parts = chunk(b'{"a":'), chunk(b"1}"), b"0\r\n\r\n"
        router, _, b = await beside_a_good_one(JSON, *parts)
        response = await client.post(f"{router.url}/v1/completions", content=UNARY)
        assert response.content == b'{"a":1}'
        assert response.headers["content-length"] == "7"
        assert response.headers["x-engine"] == "bad"
        assert not b.requests

    async def test_longer_json_passes_as_it_comes(self, beside_a_good_one, client) -> None:
        parts = [bytes([65 + number]) * 60_000 for number in range(8)]
        router, _, _ = await beside_a_good_one(JSON, *map(chunk, parts), b"0\r\n\r\n")
        response = await client.post(f"{router.url}/v1/completions", content=UNARY)
        assert response.content == b"".join(parts)
        assert "content-length" not in response.headers

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize(("lines", "size"), [(JSON, HELD_BYTES + 1), (TEXT, 4), (CHUNKED, 4)])
    async def test_what_the_client_has_a_part_of_is_cut(
        self, beside_a_good_one, client, lines: bytes, size: int, end: str
    ) -> None:
        router, _, b = await beside_a_good_one(lines, chunk(b"x" * size), end=end)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(f"{router.url}/v1/completions", content=UNARY)
        assert await router.metric("broken_answers_total", model="m") == 1
        assert router.in_flight() == 0
        assert not b.requests


class TestHttp10:
    """It has no chunks: an ordinary end of the connection would look like a whole answer's."""

    REQUEST = b"POST /score HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(UNARY), UNARY)

    async def test_a_broken_answer_is_reset(self, beside_a_good_one) -> None:
        router, _, _ = await beside_a_good_one(TEXT, chunk(b"part"), end="bad framing")
        with pytest.raises(ConnectionResetError):
            await router.exchange(self.REQUEST)

    async def test_so_is_one_whose_client_does_not_read(self, one) -> None:
        left = asyncio.Event()

        async def endless(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 200 OK\r\n%b\r\n" % TEXT)
            try:
                while True:
                    await exchange.chunk(b"x" * 65536)
            except ConnectionError:
                left.set()

        router, _ = await one(endless, timeouts=Timeouts(send=0.3))
        reader, writer = await router.connect()
        writer.write(self.REQUEST)
        await asyncio.wait_for(left.wait(), 10)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        writer.transport.abort()


class TestEvents:
    @pytest.mark.parametrize("end", ENDS)
    async def test_after_an_event_an_error_event_ends_them(
        self, beside_a_good_one, client, end: str
    ) -> None:
        router, _, b = await beside_a_good_one(EVENTS, chunk(b"data: 1\n\n"), end=end)
        response = await client.post(f"{router.url}/v1/completions", content=STREAM)
        first, *_, last = response.text.strip().split("\n\n")
        assert first == "data: 1"
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_failed"
        assert not b.requests


class TestAStreamThatWaited:
    """Its client has a head and comments: it can be told of anything by events only."""

    @pytest.fixture
    def waited(self, start_replica, start_router, model_entry, write_config, client):
        """What the client gets in the end, of an engine with this script."""

        async def start(script: Any) -> str:
            waiting = QueueLimits(heartbeat=0.05)
            router = await start_router([model_entry("m")], waiting=waiting)
            replica = await start_replica(script=script)
            url = f"{router.url}/v1/completions"
            async with client.stream("POST", url, content=STREAM) as response:
                assert response.status_code == 200
                write_config(router.config, [model_entry("m", replica)])
                text = b"".join([part async for part in response.aiter_bytes()]).decode()
            last: str = text.strip().split("\n\n")[-1]
            assert "\n" not in last
            return last.removeprefix("data: ")

        return start

    async def test_an_answer_that_is_no_stream_is_an_error(self, waited, scripts) -> None:
        last = json.loads(await waited(scripts.ok))
        assert last["error"]["code"] == "replica_failed"

    async def test_so_is_a_refusal_that_is_no_error_object(self, waited, scripts) -> None:
        last = json.loads(await waited(scripts.status(422)))
        assert last["error"]["code"] == "replica_failed"

    async def test_a_refusal_is_told_in_one_line(self, waited) -> None:
        async def refuse(exchange: Any) -> None:
            body = json.dumps({"error": {"code": 400, "message": "too\nlong"}}, indent=1).encode()
            await exchange.write(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n" % len(body), body)

        assert json.loads(await waited(refuse)) == {"error": {"code": 400, "message": "too\nlong"}}
