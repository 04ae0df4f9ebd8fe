"""A replica that does byte for byte what a test tells it.

It stands in for an engine because most of these tests are about faults: answers cut at a given
byte, connections that are reset, status codes at a given moment. Tests with real engines are the
project's end-to-end tests.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kvasir_router.process.client_port import listen


@dataclass
class Received:
    """A request as it came to a replica."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name]
        assert len(values) < 2, f"{name} came twice"
        return values[0] if values else None


Script = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """Request, and the connection to answer it on."""

    def __init__(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.request = request
        self.reader = reader
        self.writer = writer

    async def write(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def json(self, status: int, content: Any, *lines: bytes) -> None:
        body = json.dumps(content).encode()
        await self.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n" % status
            + b"".join(line + b"\r\n" for line in lines)
            + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )

    async def start_events(self) -> None:
        await self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    def reset(self) -> None:
        """End the connection as a killed process does."""
        self.writer.transport.abort()

    async def client_left(self) -> None:
        """Wait until the other side has closed."""
        with suppress(ConnectionError):
            assert await self.reader.read() == b""


async def answer_name(exchange: Exchange) -> None:
    """The default script."""
    await exchange.json(200, {"target": exchange.request.target})


@dataclass
class FakeReplica:
    """Serve /ready and /v1/models; every POST is answered by `script`."""

    script: Script = answer_name
    ready: int = 200
    max_model_len: int = 4096
    card: dict[str, Any] = field(default_factory=dict)
    """More of what /v1/models says."""
    port: int = 0
    tls: ssl.SSLContext | None = None
    requests: list[Received] = field(default_factory=list)
    probes: list[Received] = field(default_factory=list)
    connections: int = 0

    async def start(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        sock = listen("127.0.0.1", self.port, "port")
        self.port = sock.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, sock=sock, ssl=self.tls)

    async def stop(self) -> None:
        """Stop as if killed: nothing listens, every connection is reset."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            while not writer.is_closing():
                await self._answer(Exchange(await _read_request(reader), reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the other side closed, or the test is over
        finally:
            writer.transport.abort()
            self._tasks.discard(task)
            self._writers.discard(writer)

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.method == "POST":
            self.requests.append(request)
            await self.script(exchange)
            return
        self.probes.append(request)
        if request.target == "/ready":
            await exchange.json(self.ready, {})
        else:
            card = {"max_model_len": self.max_model_len, **self.card}
            await exchange.json(200, {"data": [card]})


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(name, value) for name, value in (line.split(": ", 1) for line in lines)]
    request = Received(method, target, headers, b"")
    request.body = await reader.readexactly(int(request.header("content-length") or 0))
    return request
