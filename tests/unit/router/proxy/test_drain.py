"""A router that ends: whoever may still use a connection that it keeps is answered on it."""

import asyncio
import socket
from typing import Any

import pytest

from kvasir_router.options.router_settings import QueueLimits

BODY = b'{"model": "m"}'


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """One answer with a Content-Length, head and body."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = head.lower().partition(b"content-length:")[2].split()[0]
    return head + await reader.readexactly(int(length))


@pytest.mark.slow
async def test_a_kept_connection_is_answered_once_more_and_told_to_close(one, post) -> None:
    router, _ = await one()
    reader, writer = await router.connect()
    writer.write(post(BODY))
    assert b"Connection: close" not in await read_answer(reader)
    draining = asyncio.create_task(router.server.gateway.drain(30))
    await asyncio.sleep(0.2)
    writer.write(post(BODY))
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close\r\n" in answer
    await draining
    writer.close()


@pytest.mark.slow
async def test_the_next_request_after_a_stream_that_was_not_told_to_close(one, post) -> None:
    go_on = asyncio.Event()

    async def stream(exchange: Any) -> None:
        await exchange.start_events()
        await exchange.chunk(b"data: 0\n\n")
        await go_on.wait()
        await exchange.chunk(b"data: 1\n\n")
        await exchange.end()

    router, _ = await one(script=stream)
    reader, writer = await router.connect()
    writer.write(post(BODY))
    await reader.readuntil(b"data: 0\n\n")
    draining = asyncio.create_task(router.server.gateway.drain(30))
    await asyncio.sleep(0.1)
    go_on.set()
    await reader.readuntil(b"\r\n0\r\n\r\n")
    await asyncio.sleep(0.2)  # as long as a client may think
    writer.write(post(BODY))
    answer = await asyncio.wait_for(reader.read(), 10)
    assert b"Connection: close\r\n" in answer
    assert answer.endswith(b"data: 1\n\n\r\n0\r\n\r\n")
    await draining
    writer.close()


async def test_what_has_come_is_answered_though_it_was_not_read_yet(one, post, eventually) -> None:
    router, _ = await one()
    gateway = router.server.gateway
    with socket.create_connection(("127.0.0.1", router.port)) as client:
        await eventually(lambda: gateway.clients.connections)
        [connection] = gateway.clients.connections
        client.sendall(post(BODY, b"Connection: close"))
        connection.close_if_idle(0)  # in the same turn of the loop
        client.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=client)
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_idle_connections_do_not_keep_it_up_for_longer(one, post) -> None:
    router, _ = await one(drain_idle=0.2)
    fresh, used = await router.connect(), await router.connect()
    used[1].write(post(BODY))
    await read_answer(used[0])
    await asyncio.wait_for(router.server.gateway.drain(600), 10)
    for reader, writer in (fresh, used):
        assert await reader.read() == b""
        writer.close()


@pytest.mark.slow
async def test_who_waits_for_a_replica_gets_one_that_comes_in_the_drain(
    one, model_entry, write_config, post, eventually
) -> None:
    router, replica = await one(waiting=QueueLimits())
    write_config(router.config, [model_entry("m")])
    model = router.server.fleet.models["m"]
    reader, writer = await router.connect()
    await eventually(lambda: not model.ready)
    draining = asyncio.create_task(router.server.gateway.drain(30))
    await asyncio.sleep(0.1)
    writer.write(post(BODY))
    await asyncio.sleep(0.2)
    write_config(router.config, [model_entry("m", replica)])
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200 ")
    await draining
    writer.close()
