"""Engines that end under load: streams move, unary requests are asked again, none is lost."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from kvasir_router.options.router_settings import QueueLimits

PAIRS = 30
"""Of a unary request and a stream."""
PATH = "/v1/completions"


def request(number: int, **fields: Any) -> dict[str, Any]:
    prompt = f"request {number} " + "word " * 20
    body = {"model": "sim", "prompt": prompt, "max_tokens": 150, "ignore_eos": True, "seed": 1}
    return {**body, **fields}


async def unary(http: httpx.AsyncClient, url: str, number: int) -> str:
    response = await http.post(url + PATH, json=request(number))
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


async def streamed(
    http: httpx.AsyncClient, url: str, number: int, begun: set[int] | None = None
) -> str:
    """The text of all events; an error event is a loss. `number` is noted with the first event."""
    lines = []
    async with http.stream("POST", url + PATH, json=request(number, stream=True)) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                lines.append(line)
                if begun is not None:
                    begun.add(number)
    assert lines[-1] == "data: [DONE]", lines[-1]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [chunk for chunk in chunks if "error" in chunk] == []
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


def running(tasks: list[asyncio.Task[str]]) -> int:
    return sum(not each.done() for each in tasks)


@pytest.fixture
async def http():
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:
        yield client


@pytest.mark.slow
async def test_one_of_three_is_killed(start_fleet, http, eventually) -> None:
    # Ten tokens a second: however busy the machine is, streams run on until all has begun
    engines, router, replicas = await start_fleet(3, "--speed-profile", "slow")
    begun: set[int] = set()
    numbers = range(PAIRS)
    streams = [asyncio.create_task(streamed(http, router.url, n, begun)) for n in numbers]
    # A stream of which nothing has come is asked again; only one that has begun can move.
    await eventually(lambda: len(begun) == PAIRS, 60)
    unaries = [asyncio.create_task(unary(http, router.url, n)) for n in numbers]
    await eventually(lambda: router.in_flight() >= running(streams) + 9, 60)
    victim = max(range(3), key=lambda number: replicas[number].in_flight)
    hit = replicas[victim].in_flight
    killed = time.monotonic()
    await engines[victim].kill()
    untouched = asyncio.create_task(unary(http, router.url, 0))
    answers = await asyncio.gather(*unaries)
    assert await asyncio.gather(*streams) == answers, "a moved stream is the whole answer"
    assert answers[0] == await untouched != ""
    assert router.in_flight() == 0
    moved = await router.metric("stream_migrations_total", outcome="moved")
    retried = await router.metric("retries_total", model="sim")
    assert hit > 0
    assert retried > 0
    assert moved > 0
    assert await router.metric("broken_answers_total") == 0
    print(
        f"{hit} were there, {moved:.0f} streams moved; all ended {time.monotonic() - killed:.2f} s"
    )


@pytest.mark.slow
async def test_all_are_killed_and_come_back(start_fleet, http, eventually) -> None:
    waiting = QueueLimits(requests=64, hold=120)
    engines, router, _ = await start_fleet(2, waiting=waiting)
    expected = await unary(http, router.url, 1)
    for engine in engines:
        await engine.kill()
    asked = [asyncio.create_task(unary(http, router.url, 1)) for _ in range(8)]
    model = router.server.fleet.models["sim"]
    await eventually(lambda: router.server.gateway.queue.waiting(model) == 8, 30)
    await engines[1].start()
    assert await asyncio.gather(*asked) == [expected] * 8
    assert router.in_flight() == 0
