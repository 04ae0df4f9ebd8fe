"""Streams of chat requests to a router, counted by stage: each as its client saw it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from router_tools import cpu_ns
from sim_fleet import Scale


@dataclass
class Call:
    """Request as its client saw it; seconds of this machine's clock."""

    started: float
    first: float = 0.0
    ended: float = 0.0
    text: str = ""
    tokens: int = 0


class Client(asyncio.Protocol):
    """Send one chat request over a connection of its own, and read the stream."""

    def __init__(self, request: bytes, counted: Callable[[int], None]) -> None:
        self._request = request
        self._counted = counted
        self._data = b""
        self._parts: list[str] = []
        self.call = Call(time.monotonic())
        self.done: asyncio.Future[Call] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        *events, self._data = (self._data + data).split(b"\n\n")
        for event in events:
            start = event.find(b"data: {")
            if start >= 0:
                self._event(json.loads(event[start + 6 :].split(b"\n", 1)[0]))
        if b"data: [DONE]" in self._data or any(b"data: [DONE]" in event for event in events):
            self.call.ended = time.monotonic()
            self.call.text = "".join(self._parts)
            if not self.done.done():
                self.done.set_result(self.call)

    def _event(self, event: dict[str, Any]) -> None:
        for choice in event.get("choices", ()):
            text = choice.get("delta", {}).get("content")
            if text:
                self.call.first = self.call.first or time.monotonic()
                self._parts.append(text)
                words = len(text.split())
                self.call.tokens += words
                self._counted(words)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"no whole answer: {self._data[:200]!r}"))


@dataclass
class Stage:
    """Calls and counts between the begin of a stage and its end."""

    calls: list[Call] = field(default_factory=list)
    lost: int = 0
    unfinished: int = 0
    tokens: int = 0
    seconds: float = 0.0
    machine: float = 0.0
    """Share of all cores that was busy."""
    router: float = 0.0
    """Share of one core that the router used."""


class Load:
    """Requests to one router, counted."""

    def __init__(self, port: int, scale: Scale) -> None:
        self.port = port
        self.scale = scale
        self.stage = Stage()
        self.running: set[asyncio.Task[None]] = set()

    async def ask(self, messages: list[dict[str, Any]], real_tokens: int) -> Call:
        """Raise OSError when the answer was not whole."""
        stage = self.stage
        content = {"model": "bench", "messages": messages, "stream": True, "ignore_eos": True}
        content["max_tokens"] = self.scale.count(real_tokens)
        body = json.dumps(content).encode()
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        transport, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(request, self._count), "127.0.0.1", self.port
        )
        stage.calls.append(client.call)
        try:
            return await client.done
        except OSError:
            stage.lost += 1
            raise
        finally:
            transport.abort()

    def _count(self, tokens: int) -> None:
        self.stage.tokens += tokens

    def start(self, session: Awaitable[None]) -> None:
        async def run() -> None:
            with suppress(OSError):
                await session

        task = asyncio.create_task(run())
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def sleep(self, real_seconds: float) -> None:
        await asyncio.sleep(real_seconds / self.scale.speed)


Session = Callable[[Load], Awaitable[None]]


async def run_stage(
    load: Load,
    arrivals: AsyncIterator[Session],
    rate: float,
    lead_seconds: float,
    real_seconds: float,
    router_pid: int,
) -> Stage:
    """Arrivals for `lead_seconds`, so that as many requests run as the rate means, and then for the
    time that counts; at last what runs may give its first token for half as long."""
    source = random.Random(7)
    load.stage = Stage()
    await arrive(load, arrivals, rate, lead_seconds, source)
    load.stage = stage = Stage()
    begin, busy, router = time.monotonic(), busy_seconds(), cpu_ns(router_pid)
    await arrive(load, arrivals, rate, real_seconds, source)
    wall = time.monotonic() - begin
    stage.seconds, tokens = wall, stage.tokens
    stage.machine = (busy_seconds() - busy) / wall / (os.cpu_count() or 1)
    stage.router = (cpu_ns(router_pid) - router) / 1e9 / wall
    measured = list(stage.calls)
    for _ in range(100):
        if all(call.first for call in measured):
            break
        await asyncio.sleep(wall / 200)
    now = time.monotonic()
    stage.unfinished = sum(not call.first for call in measured)
    for call in measured:
        call.first = call.first or now  # no less than this
    stage.calls, stage.tokens = measured, tokens
    return stage


async def arrive(
    load: Load,
    arrivals: AsyncIterator[Session],
    rate: float,
    real_seconds: float,
    source: random.Random,
) -> None:
    """Start sessions at Poisson times."""
    speed = load.scale.speed
    due = time.monotonic()
    end = due + real_seconds / speed
    while (due := due + source.expovariate(rate * speed)) < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        load.start((await anext(arrivals))(load))
    await asyncio.sleep(max(0.0, end - time.monotonic()))


def busy_seconds() -> float:
    """Return the busy seconds of all cores since the machine started."""
    user, nice, system, *_ = (int(part) for part in _first_line("/proc/stat").split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _first_line(path: str) -> str:
    return Path(path).read_text().partition("\n")[0]
