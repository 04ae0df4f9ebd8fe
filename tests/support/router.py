"""A router on real sockets, and a replica that does byte for byte what a test tells it.

The replica stands in for an engine because most of these tests are about faults: answers cut at a
given byte, connections that are reset, status codes at a given moment. Tests with real engines are
the project's end-to-end tests.
"""

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import uvloop
import yaml

from kvasir.cli.local.ports import free_ports, reserve_port
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.options.router_settings import Probing, QueueLimits, RouterSettings, Timeouts
from kvasir_router.process import client_port
from kvasir_router.process.client_port import listen
from kvasir_router.process.single_process import RouterServer
from kvasir_router.wire.http_request import Limits

ROOT = Path(__file__).parents[2]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router runs on uvloop, whose transports differ from asyncio's in when they write."""
    return {"uvloop": uvloop.new_event_loop}


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


class RunningRouter:
    """A router in this process, with its sockets, and clients for it."""

    def __init__(self, server: RouterServer, port: int, admin_port: int, config: Path) -> None:
        self.server = server
        self.port = port
        self.admin_port = admin_port
        self.url = f"http://127.0.0.1:{port}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        self.config = config

    def replica(self, model: str, replica_id: str) -> Replica:
        [replica] = [
            replica
            for replica in self.server.fleet.models[model].replicas.values()
            if replica.id == replica_id
        ]
        return replica

    def in_flight(self) -> int:
        return sum(replica.in_flight for _, replica in self.server.fleet.replicas())

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        text = self.server.metrics.text().decode()
        total = 0.0
        for line in text.splitlines():
            if line.startswith(f"kvasir_router_{name}") and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes until the router closes."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.transport.abort()


async def end_router(server: RouterServer) -> None:
    """Stop a router that nobody needs any more, without the time that its clients' handshakes and
    the admin port's connections would get."""
    admin = server._admin_task
    if admin is not None and not admin.done():
        admin.cancel()
        for listener in server._admin.servers:
            listener.close()
    server._admin_task = None
    with patch.object(client_port, "_HANDSHAKE_SECONDS", 0.0):
        await server.stop()


def post(body: bytes, *lines: bytes, target: bytes = b"/v1/chat/completions") -> bytes:
    """A whole request."""
    return b"POST %b HTTP/1.1\r\nHost: router\r\nContent-Length: %d\r\n%b\r\n%b" % (
        target,
        len(body),
        b"".join(line + b"\r\n" for line in lines),
        body,
    )


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until it holds; fail when it does not within a time far beyond what it needs."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions are on state without events
            await asyncio.sleep(0.005)


def write_config(path: Path, models: list[dict[str, Any]]) -> None:
    """Write the file as `kvasir up` does it: a new file moved into place."""
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"models": models}))
    new.replace(path)


def model_entry(name: str, *replicas: FakeReplica, aliases: list[str] | None = None) -> Any:
    return {
        "name": name,
        "aliases": aliases or [],
        "replicas": [{"id": f"r{i}", "url": replica.url} for i, replica in enumerate(replicas)],
    }


@pytest.fixture(name="post")
def post_fixture() -> Callable[..., bytes]:
    return post


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Awaitable[None]]:
    return eventually


@pytest.fixture(name="model_entry")
def model_entry_fixture() -> Callable[..., Any]:
    return model_entry


@pytest.fixture(name="write_config")
def write_config_fixture() -> Callable[..., None]:
    return write_config


@pytest.fixture
async def start_replica() -> AsyncIterator[Callable[..., Awaitable[FakeReplica]]]:
    started: list[FakeReplica] = []
    with ExitStack() as reserved:

        async def start(**options: Any) -> FakeReplica:
            # Nobody else's until the test ends, also while the replica is stopped.
            port = reserved.enter_context(reserve_port()).getsockname()[1]
            replica = FakeReplica(**{"port": port, **options})
            await replica.start()
            started.append(replica)
            return replica

        yield start
        for replica in started:
            await replica.stop()


@pytest.fixture
async def start_router(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[RunningRouter]]]:
    """Start a router for models, and wait until the replicas that say so are ready."""
    async with AsyncExitStack() as stack:
        configs = (tmp_path / f"fleet{number or ''}.yaml" for number in count())

        async def start(
            models: list[dict[str, Any]],
            *,
            wait: bool = True,
            limits: Limits | None = None,
            timeouts: Timeouts | None = None,
            **options: Any,
        ) -> RunningRouter:
            config = next(configs)
            write_config(config, models)
            settings = RouterSettings(
                config=config,
                limits=limits or Limits(),
                timeouts=timeouts or Timeouts(),
                waiting=options.pop("waiting", QueueLimits(requests=0)),
                probing=options.pop("probing", Probing(0.2, 0.02, 1.0)),
                access_log=False,
                drain_timeout=0.1,
                **options,
            )
            server = RouterServer(settings)
            sock, admin_sock = listen("127.0.0.1", 0, ""), listen("127.0.0.1", 0, "")
            ports = sock.getsockname()[1], admin_sock.getsockname()[1]
            stack.callback(sock.close)
            stack.callback(admin_sock.close)
            stack.push_async_callback(end_router, server)
            await server.start(sock, admin_sock)
            router = RunningRouter(server, *ports, config)
            if wait:
                replicas = [replica for _, replica in server.fleet.replicas()]
                await eventually(lambda: all(r.health is Health.READY for r in replicas))
            return router

        yield start


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=10) as client:
        yield client


class RouterProcess:
    """`python -m kvasir_router` as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, admin_port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> tuple[int, bytes, bytes]:
        out, err = await asyncio.wait_for(self.process.communicate(), 30)
        assert self.process.returncode is not None
        return self.process.returncode, out, err


@pytest.fixture
async def start_process(
    tmp_path: Path, client: httpx.AsyncClient
) -> AsyncIterator[Callable[..., Awaitable[RouterProcess]]]:
    started: list[asyncio.subprocess.Process] = []

    async def start(
        config: Path, *options: str, wait: bool = True, path: Path | None = None
    ) -> RouterProcess:
        """`path`: a folder with more packages."""
        port, admin_port = free_ports(2)
        folders = [f"{ROOT}/api", f"{ROOT}/router", *([] if path is None else [str(path)])]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvasir_router", "--config", str(config)),
            *("--port", str(port), "--admin-port", str(admin_port), *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": ":".join(folders)},
        )
        started.append(process)
        router = RouterProcess(process, port, admin_port)
        for _ in range(600 if wait else 0):
            try:
                if (await client.get(f"{router.url}/ready")).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
        return router

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.communicate()
