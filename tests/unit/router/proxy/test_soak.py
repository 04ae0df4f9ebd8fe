"""Everything at once: whatever replicas and clients do, no request is lost or counted twice."""

import asyncio
import random
from typing import Any

BODY = b'{"model": "m"}'


async def misbehave(exchange: Any) -> None:
    """One of the ways in which a replica answers, at random."""
    way = random.choice(["json", "json", "events", "reset", "half", "cut", "busy", "slow", "error"])
    if way == "json":
        await exchange.json(200, {"ok": True})
    elif way == "events":
        await exchange.start_events()
        for _ in range(5):
            await exchange.chunk(b"data: 1\n\n")
            await asyncio.sleep(0)
        await exchange.end()
    elif way == "reset":
        exchange.reset()
    elif way == "half":
        await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        exchange.reset()
    elif way == "cut":
        await exchange.start_events()
        await exchange.chunk(b"data: 1\n\n")
        exchange.reset()
    elif way == "busy":
        await exchange.json(random.choice([429, 503]), {})
    elif way == "slow":
        await asyncio.sleep(0.02)
        await exchange.json(200, {"ok": True})
    else:
        await exchange.json(500, {})


async def test_counts_return_to_zero(
    start_replica, start_router, model_entry, post, eventually
) -> None:
    random.seed(1)
    replicas = [await start_replica(script=misbehave) for _ in range(4)]
    router = await start_router([model_entry("m", *replicas)])
    ends: dict[str, int] = {"left": 0, "answered": 0, "cut": 0}

    async def client() -> None:
        for _ in range(40):
            reader, writer = await router.connect()
            writer.write(post(BODY, b"Connection: close"))
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * 0.01)
                ends["left"] += 1
            else:
                answer = await asyncio.wait_for(reader.read(), 20)
                whole = answer.startswith(b"HTTP/1.1 ") and not answer.endswith(b"half")
                ends["answered" if whole else "cut"] += 1
                if b"event-stream" in answer:
                    assert answer.endswith(b"\r\n0\r\n\r\n")
            writer.transport.abort()

    await asyncio.gather(*[client() for _ in range(10)])
    await eventually(lambda: not router.server.gateway.clients.connections)
    assert router.in_flight() == 0
    assert sum(ends.values()) == 400
    # A client that leaves as its request arrives may not be seen as a request at all.
    counted = await router.metric("requests_total", model="m")
    assert 400 - ends["left"] <= counted <= 400
    assert await router.metric("broken_answers_total", model="m") > 0
    assert await router.metric("retries_total", model="m") > 0
    assert all(replica.requests for replica in replicas)
