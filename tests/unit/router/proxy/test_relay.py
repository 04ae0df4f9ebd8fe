"""One request's way: what reaches the replica, what comes back, and what happens on faults."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from kvasir_router.options.router_settings import Timeouts

BODY = b'{ "model": "m",  "prompt": "\\u00e9" }'
EVENTS = [b"data: {}\n\n", b": comment\n\n", b'data: {"a": "\xc3\xa9"}\n\n', b"data: [DONE]\n\n"]


async def stream_events(exchange: Any) -> None:
    await exchange.start_events()
    for event in EVENTS:
        await exchange.chunk(event)
    await exchange.end()


async def break_stream(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.chunk(EVENTS[0] + b"data: half an ev")
    exchange.reset()


class TestRequest:
    async def test_body_target_and_headers_arrive_as_they_were(self, one, scripts, client) -> None:
        router, replica = await one(scripts.ok, fleet_secret="s3cret")
        headers = {
            "X-Request-Id": "mine",
            "Authorization": "Bearer k",
            "Content-Type": "application/json",
            "x-kvasir-fleet-secret": "guess",
            "Traceparent": "00-1",
        }
        url = f"{router.url}/v1/completions?a=%20b"
        response = await client.post(url, content=BODY, headers=headers)
        [request] = replica.requests
        assert request.target == "/v1/completions?a=%20b"
        assert request.body == BODY
        assert request.header("content-length") == str(len(BODY))
        assert request.header("authorization") == "Bearer k"
        assert request.header("traceparent") == "00-1"
        assert request.header("x-kvasir-fleet-secret") == "s3cret"
        assert request.header("host") == f"127.0.0.1:{replica.port}"
        assert request.header("x-request-id") == response.headers["x-request-id"] == "mine"

    async def test_no_secret_is_sent_without_one(self, one, scripts, client) -> None:
        router, replica = await one(scripts.ok)
        await client.post(
            f"{router.url}/score", content=BODY, headers={"x-kvasir-fleet-secret": "a"}
        )
        assert replica.requests[0].header("x-kvasir-fleet-secret") is None

    async def test_a_request_id_is_made(self, one, scripts, client) -> None:
        router, replica = await one(scripts.ok)
        response = await client.post(f"{router.url}/tokenize", content=BODY)
        assert len(response.headers["x-request-id"]) == 32
        assert replica.requests[0].header("x-request-id") == response.headers["x-request-id"]

    async def test_a_chunked_upload_arrives_with_a_length(self, one, scripts, client) -> None:
        router, replica = await one(scripts.ok)

        async def parts():
            for i in range(0, len(BODY), 7):
                yield BODY[i : i + 7]

        response = await client.post(f"{router.url}/v1/completions", content=parts())
        assert response.status_code == 200
        assert replica.requests[0].body == BODY
        assert replica.requests[0].header("transfer-encoding") is None

    async def test_a_large_body_arrives_whole(self, one, scripts, client) -> None:
        router, replica = await one(scripts.ok)
        body = b'{"prompt": "' + b"x" * 5_000_000 + b'", "model": "m"}'
        assert (await client.post(f"{router.url}/score", content=body)).status_code == 200
        assert replica.requests[0].body == body

    async def test_connections_are_kept(self, one, scripts, client) -> None:
        router, replica = await one(scripts.ok)
        before = replica.connections
        for _ in range(5):
            await client.post(f"{router.url}/score", content=BODY)
        probes = len([probe for probe in replica.probes if probe.target == "/ready"])
        assert replica.connections - before <= 1 + probes
        assert len(replica.requests) == 5


class TestAnswer:
    async def test_unary_is_byte_exact(self, one, router_bytes) -> None:
        body = bytes(range(256)) * 40

        async def answer(exchange: Any) -> None:
            await exchange.write(
                b"HTTP/1.1 201 Made\r\nDate: today\r\nX-Custom:  two  words \r\n"
                b"Connection: close, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Request-Id: other\r\n"
                b"x-kvasir-usage: 5\r\nContent-Length: %d\r\n\r\n" % len(body),
                *(body[i : i + 1000] for i in range(0, len(body), 1000)),
            )

        router, _ = await one(answer)
        head, received = await router_bytes(router, BODY, b"X-Request-Id: a1")
        assert received == body
        assert head.startswith(b"HTTP/1.1 201 Created\r\n")
        lines = head.split(b"\r\n")[1:]
        assert set(lines) == {
            b"Date: today",
            b"X-Custom: two  words ",
            b"Content-Length: 10240",
            b"X-Request-Id: a1",
            b"Connection: close",
        }

    async def test_events_are_byte_exact_and_come_at_once(self, one, client) -> None:
        go_on = asyncio.Event()

        async def answer(exchange: Any) -> None:
            await exchange.start_events()
            await exchange.chunk(EVENTS[0])
            await go_on.wait()
            for event in EVENTS[1:]:
                await exchange.chunk(event)
            await exchange.end()

        router, _ = await one(answer)
        async with client.stream("POST", f"{router.url}/score", content=BODY) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            parts = response.aiter_bytes()
            received = await asyncio.wait_for(anext(parts), 30)
            assert received == EVENTS[0]
            go_on.set()
            received += b"".join([part async for part in parts])
        assert received == b"".join(EVENTS)

    async def test_chunked_json_keeps_its_content(self, one, client) -> None:
        async def answer(exchange: Any) -> None:
            await exchange.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n",
                b"3\r\n[1,\r\n2;ext=1\r\n2]\r\n0\r\nX-T: 1\r\n\r\n",
            )

        router, _ = await one(answer)
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.json() == [1, 2]

    async def test_an_answer_that_ends_with_its_connection(self, one, client) -> None:
        async def answer(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
            exchange.writer.close()

        router, _ = await one(answer)
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.content == b"all of it"

    @pytest.mark.parametrize("status", [204, 304])
    async def test_answers_without_a_body(self, one, client, status: int) -> None:
        async def answer(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 %d X\r\nETag: a\r\n\r\n" % status)

        router, _ = await one(answer)
        for _ in range(2):
            response = await client.post(f"{router.url}/score", content=BODY)
            assert (response.status_code, response.content) == (status, b"")
            assert "transfer-encoding" not in response.headers

    async def test_interim_answers_are_not_passed(self, one, client) -> None:
        async def answer(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
            await exchange.json(200, {})

        router, _ = await one(answer)
        response = await client.post(f"{router.url}/score", content=BODY)
        assert response.status_code == 200
        assert "link" not in response.headers

    async def test_errors_of_the_engine_are_passed(self, one, scripts, client) -> None:
        router, replica = await one(scripts.status(422))
        response = await client.post(f"{router.url}/score", content=BODY)
        assert (response.status_code, response.json()) == (422, {"from": 422})
        assert len(replica.requests) == 1

    async def test_http10_gets_a_plain_body_until_close(self, one) -> None:
        router, _ = await one(stream_events)
        answer = await router.exchange(
            b"POST /score HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
        )
        head, body = answer.split(b"\r\n\r\n", 1)
        assert body == b"".join(EVENTS)
        assert b"chunked" not in head


class TestBrokenAnswer:
    async def test_an_event_stream_ends_with_an_error_event(self, one, client) -> None:
        router, _ = await one(break_stream)
        response = await client.post(f"{router.url}/score", content=BODY)
        events = response.text.split("\n\n")
        assert events[0] + "\n\n" == EVENTS[0].decode()
        error = json.loads(events[-2].removeprefix("data: "))["error"]
        assert error["code"] == "replica_failed"
        assert "half an ev" not in response.text
        assert await router.metric("broken_answers_total", model="m") == 1
        assert router.in_flight() == 0

    async def test_the_connection_is_good_for_another_request(self, one, scripts, post) -> None:
        router, replica = await one(break_stream)
        reader, writer = await router.connect()
        writer.write(post(BODY))
        await reader.readuntil(b"\r\n0\r\n\r\n")
        replica.script = scripts.ok
        writer.write(post(BODY, b"Connection: close"))
        assert (await reader.read()).endswith(b'{"ok": true}')
        writer.close()

    async def test_garbage_in_the_chunks_ends_it_too(self, one, post) -> None:
        passed = asyncio.Event()

        async def garbage(exchange: Any) -> None:
            await exchange.start_events()
            await exchange.chunk(EVENTS[0])
            await passed.wait()
            await exchange.write(b"zz\r\nno chunk\r\n")

        router, _ = await one(garbage)
        reader, writer = await router.connect()
        writer.write(post(BODY, b"Connection: close"))
        await reader.readuntil(EVENTS[0])
        passed.set()
        rest = await reader.read()
        assert b"replica_failed" in rest
        assert b"no chunk" not in rest
        writer.close()

    async def test_half_a_large_answer_cuts_the_connection(self, one, client) -> None:
        async def half(exchange: Any) -> None:
            await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\nhalf")
            await asyncio.sleep(0.05)
            exchange.reset()

        router, _ = await one(half)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(f"{router.url}/score", content=BODY)
        assert await router.metric("broken_answers_total", model="m") == 1
        assert router.in_flight() == 0


class TestClient:
    @pytest.mark.parametrize("after_head", [False, True])
    async def test_leaving_reaches_the_replica(
        self, one, post, eventually, after_head: bool
    ) -> None:
        left = asyncio.Event()

        async def answer(exchange: Any) -> None:
            if after_head:
                await exchange.start_events()
                await exchange.chunk(EVENTS[0])
            await exchange.client_left()
            left.set()

        router, replica = await one(answer)
        reader, writer = await router.connect()
        writer.write(post(BODY))
        if after_head:
            await reader.readuntil(b"\n\n")
        await eventually(lambda: len(replica.requests) == 1)
        assert router.in_flight() == 1
        writer.close()
        await asyncio.wait_for(left.wait(), 30)
        assert router.in_flight() == 0
        assert await router.metric("requests_total", model="m", code="499") == 1
        assert not router.replica("m", "r0").failures

    async def test_leaving_is_passed_on_in_the_same_call(
        self, one, scripts, post, eventually
    ) -> None:
        """No matter how much else waits for its turn in the loop."""
        router, replica = await one(scripts.silent)
        writers = []
        for _ in range(20):
            _, writer = await router.connect()
            writer.write(post(BODY))
            writers.append(writer)
        await eventually(lambda: len(replica.requests) == 20)
        clients = list(router.server.gateway.clients.connections)
        upstream = [client._relay._attempts._running.current._connection for client in clients]
        assert all(connection.usable for connection in upstream)
        for client in clients:
            client.connection_lost(None)
        assert not any(connection.usable for connection in upstream)
        assert router.in_flight() == 0
        for writer in writers:
            writer.transport.abort()

    async def test_a_slow_reader_stops_its_replica(self, one, post, eventually) -> None:
        size = 64 * 1024 * 1024
        sent = 0

        async def answer(exchange: Any) -> None:
            nonlocal sent
            await exchange.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % size
            )
            for _ in range(size // 65536):
                await exchange.write(b"x" * 65536)
                sent += 65536

        router, _ = await one(answer)
        reader, writer = await router.connect()
        writer.write(post(BODY))
        await eventually(lambda: sent > 0)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        # What the sockets of both hops hold, and the router's bounded buffer.
        assert sent < size / 2
        [client] = router.server.gateway.clients.connections
        assert client._transport.get_write_buffer_size() < 1024 * 1024
        await reader.readuntil(b"\r\n\r\n")
        received = 0
        while received < size:
            received += len(await reader.read(1 << 20))
        assert received == size
        writer.close()

    async def test_a_reader_that_stops_for_good_is_cut(self, one, post, eventually) -> None:
        left = asyncio.Event()

        async def answer(exchange: Any) -> None:
            await exchange.start_events()
            try:
                while True:
                    await exchange.chunk(b"data: " + b"x" * 65536 + b"\n\n")
            except ConnectionError:
                left.set()

        router, _ = await one(answer, timeouts=Timeouts(send=0.3))
        _, writer = await router.connect()
        writer.write(post(BODY))
        await asyncio.wait_for(left.wait(), 10)
        await eventually(lambda: router.in_flight() == 0)
        writer.transport.abort()
