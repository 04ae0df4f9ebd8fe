"""A client that leaves is passed on before anything else happens, however busy the router is."""

import asyncio
import json
from contextlib import suppress
from typing import Any

CROWD = 24
EVENTS_MEANWHILE = 64
"""Far fewer than come in the time that any wait would take."""


async def test_an_engine_hears_of_it_among_a_flood_of_events(
    start_replica, start_router, model_entry, post, eventually
) -> None:
    written = 0
    at_departure: list[int] = []

    async def flood(exchange: Any) -> None:
        """Events as fast as they go, until the router leaves."""
        nonlocal written
        leaves = json.loads(exchange.request.body).get("leaves")
        left = asyncio.ensure_future(exchange.client_left())
        await exchange.start_events()
        with suppress(ConnectionError):
            while not left.done():
                await exchange.chunk(b"data: 1\n\n")
                written += bool(leaves)
                await asyncio.sleep(0)
        await left
        if leaves:
            at_departure.append(written)

    replica = await start_replica(script=flood)
    router = await start_router([model_entry("m", replica)])
    crowd = [await router.connect() for _ in range(CROWD)]
    for _, writer in crowd:
        writer.write(post(b'{"model": "m", "stream": true}'))
    reading = [asyncio.ensure_future(_read_all(reader)) for reader, _ in crowd]
    for _ in range(5):
        reader, writer = await router.connect()
        writer.write(post(b'{"model": "m", "stream": true, "leaves": true}'))
        await reader.readuntil(b"data: 1")
        writer.transport.abort()
        before = written
        await eventually(lambda: len(at_departure) == 1)
        assert at_departure.pop() - before < EVENTS_MEANWHILE
    for _, writer in crowd:
        writer.transport.abort()
    await asyncio.gather(*reading)
    await eventually(lambda: router.in_flight() == 0)


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass
