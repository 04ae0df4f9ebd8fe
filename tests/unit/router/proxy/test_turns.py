"""No connection keeps the others waiting: what one may do in a turn of the loop is bounded."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvasir_router.proxy.client.connection import ClientConnection
from kvasir_router.wire.request_parser import RequestParser

GET = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


class Turns:
    """Count what happens between two turns of the loop: in each, every connection is seen."""

    def __init__(self) -> None:
        self.here = 0
        self.most = 0
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._turn)

    def count(self) -> None:
        self.here += 1

    def _turn(self) -> None:
        self.most = max(self.most, self.here)
        self.here = 0
        self.number += 1
        self._handle = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    counting = Turns()
    yield counting
    counting.stop()


@pytest.fixture
def start(start_replica, start_router, model_entry):
    async def start(**options: Any) -> Any:
        return await start_router([model_entry("m", await start_replica())], **options)

    return start


async def read_answers(reader: asyncio.StreamReader, count: int) -> None:
    while count > 0:
        count -= (await reader.read(1 << 16)).count(b"HTTP/1.1 200")


async def test_a_flood_of_small_requests_is_answered_in_small_turns(
    start, turns, monkeypatch
) -> None:
    router = await start()
    answer = router.server.gateway._local.answer

    def counted(request: Any) -> Any:
        turns.count()
        return answer(request)

    monkeypatch.setattr(router.server.gateway._local, "answer", counted)
    reader, writer = await router.connect()
    writer.write(GET * 5000)
    await read_answers(reader, 5000)
    writer.close()
    assert 0 < turns.most <= 48  # three calls of one connection may fall in a turn


@pytest.mark.slow
async def test_a_small_client_is_answered_beside_floods(start, post) -> None:
    """The small client's requests are all answered before any of the floods is over."""
    router = await start()
    floods = [await router.connect() for _ in range(4)]
    left = dict.fromkeys(range(4), 4000)

    async def read(number: int, reader: asyncio.StreamReader) -> None:
        while left[number] > 0:
            left[number] -= (await reader.read(1 << 14)).count(b"HTTP/1.1 200")

    reading = [asyncio.create_task(read(i, reader)) for i, (reader, _) in enumerate(floods)]
    for _, writer in floods:
        writer.write(GET * 4000)
    reader, writer = await router.connect()
    for _ in range(5):
        writer.write(post(b'{"model": "m"}'))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))
    assert min(left.values()) > 0
    await asyncio.gather(*reading)
    for _, flood in [*floods, (reader, writer)]:
        flood.close()


async def test_a_flood_of_tiny_chunks_is_parsed_in_small_turns(start, turns, monkeypatch) -> None:
    on_body = RequestParser.on_body

    def counted(parser: RequestParser, data: bytes) -> None:
        turns.count()
        on_body(parser, data)

    monkeypatch.setattr(RequestParser, "on_body", counted)
    router = await start()
    answer = await router.exchange(
        b"POST /score HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"1\r\na\r\n" * 40_000
        + b"0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert 1000 < turns.most < 6000  # 16 KiB hold 2,700; one read may hold all 40,000


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_not_read_from(start, eventually) -> None:
    router = await start()
    _, writer = await router.connect()
    writer.transport.set_write_buffer_limits(high=0)
    sent = 0

    async def send() -> None:
        nonlocal sent
        while True:
            writer.write(GET * 1000)
            await writer.drain()
            sent += 1000

    sending = asyncio.create_task(send())
    [client] = router.server.gateway.clients.connections
    await eventually(lambda: not client._arrival.reading and not client._writing)
    here = sent
    await asyncio.sleep(0.2)
    assert sent <= here + 1000
    assert len(client._queue) * len(GET) < 1 << 20
    sending.cancel()
    writer.transport.abort()


async def test_a_client_that_expects_to_be_told_to_go_on_behind_another_request(
    start_replica, start_router, model_entry, post
) -> None:
    answer_now = asyncio.Event()

    async def wait(exchange: Any) -> None:
        await answer_now.wait()
        await exchange.json(200, {})

    router = await start_router([model_entry("m", await start_replica(script=wait))])
    reader, writer = await router.connect()
    writer.write(post(b'{"model": "m"}'))
    writer.write(
        b"POST /score HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n"
    )
    await asyncio.sleep(0.05)
    answer_now.set()
    assert (await reader.readuntil(b"\r\n\r\n{}")).startswith(b"HTTP/1.1 200")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"model": "m"}')
    assert (await reader.readuntil(b"\r\n\r\n{}")).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
async def test_large_bodies_pass_and_larger_ones_are_refused(
    start_replica, start_router, model_entry, client, chunked: bool
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    body = b'{"model": "m", "prompt": "' + b"x" * 10_000_000 + b'"}'

    async def parts(size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, 1_000_000):
            yield body[:26] if start == 0 else b"x" * 1_000_000
        yield b'"}'

    url = f"{router.url}/v1/completions"
    passed = await client.post(url, content=parts(11_000_000) if chunked else body)
    assert passed.status_code == 200
    assert replica.requests[0].body == body
    content = parts(100_000_000) if chunked else b"x" * 100_000_000
    refused = await client.post(url, content=content)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert len(replica.requests) == 1


async def test_a_long_body_is_read_in_small_turns(start, turns, monkeypatch) -> None:
    """asyncio reads up to 32 times in a turn, where as much is there."""
    router = await start()
    on_data, sizes = ClientConnection.data_received, Counter()

    def counted(connection: ClientConnection, data: bytes) -> None:
        sizes[turns.number] += len(data)
        on_data(connection, data)

    monkeypatch.setattr(ClientConnection, "data_received", counted)
    body = b'{"model": "m", "prompt": "%b"}' % (b"x" * 40_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    assert sum(sizes.values()) > len(body)
    assert max(sizes.values()) <= 256 * 1024  # one read: of the densest, 2 ms are scanned
