"""A router on real sockets, in this process or in one of its own."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import httpx
import pytest
import uvloop
import yaml
from support.routers.fake_replica import FakeReplica

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
    with (
        patch.object(client_port, "_HANDSHAKE_SECONDS", 0.0),
        patch.object(server._admin, "stop", AsyncMock()),
    ):
        await server.stop()


def post(body: bytes, *lines: bytes, target: bytes = b"/v1/chat/completions") -> bytes:
    """A whole request."""
    return b"POST %b HTTP/1.1\r\nHost: router\r\nContent-Length: %d\r\n%b\r\n%b" % (
        target,
        len(body),
        b"".join(line + b"\r\n" for line in lines),
        body,
    )


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
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
        "replicas": [
            {"id": f"r{i}", "url": replica.url, "engine": "kvasir"}
            for i, replica in enumerate(replicas)
        ],
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
def stream_until(start_replica: Callable[..., Any]) -> Callable[..., Any]:
    """stream_until(): a replica whose streams go on until the event, which it returns too, is
    set."""

    async def start() -> tuple[FakeReplica, asyncio.Event]:
        go_on = asyncio.Event()

        async def stream(exchange: Any) -> None:
            await exchange.start_events()
            await exchange.chunk(b"data: 1\n\n")
            await go_on.wait()
            await exchange.chunk(b"data: 2\n\n")
            await exchange.end()

        return await start_replica(script=stream), go_on

    return start


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
    async with httpx.AsyncClient(timeout=60) as client:
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
