"""Simulated engines as processes of their own, with all their feeds, and a load on them."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.local.ports import free_ports
from kvasir_router.fleet.replica import Health
from kvasir_router.settings import Probing

ROOT = Path(__file__).parents[3]
SECRET = "fleet-secret"
MODEL = "sim"
SERVE = (
    *(sys.executable, "-m", "kvasir", "serve", MODEL, "--device", "sim"),
    *("--model-config", "builtin://kvasir-tiny", "--speed-profile", "h200-llama-3.1-8b-bf16"),
)


class SimEngine:
    """A `kvasir serve --device sim` and what it started, as one process group."""

    def __init__(self, name: str, log: Path, secret: str = SECRET) -> None:
        self.name = name
        self._secret = secret
        self._log = log
        self._ports = free_ports(4)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Begin to start, on the same ports each time."""
        http, grpc, events, replay = self._ports
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*SERVE, "--port", str(http), "--grpc-port", str(grpc)),
                *("--kv-events-endpoint", f"tcp://127.0.0.1:{events}"),
                *("--kv-events-replay-endpoint", f"tcp://127.0.0.1:{replay}"),
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ
                | {"PYTHONPATH": f"{ROOT}/api:{ROOT}/engine", "KVASIR_FLEET_SECRET": self._secret},
            )

    @property
    def entry(self) -> dict[str, Any]:
        """As the discovery file has it."""
        http, grpc, events, replay = self._ports
        return {
            "id": self.name,
            "url": f"http://127.0.0.1:{http}",
            "grpc_port": grpc,
            "kv_events": f"tcp://127.0.0.1:{events}",
            "kv_replay": f"tcp://127.0.0.1:{replay}",
        }

    def signal(self, number: signal.Signals) -> None:
        """To all its processes."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def kill(self) -> None:
        """Returns when its port is closed: what still connects would be in flight at its death."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        await self._process.wait()
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._ports[0])
                except OSError:
                    return
                writer.close()
                await asyncio.sleep(0.01)

    def log(self) -> str:
        return self._log.read_text()


class Load:
    """Clients that ask for one answer after the other; each must come."""

    def __init__(self, url: str, client: httpx.AsyncClient, clients: int) -> None:
        self.answers: list[tuple[float, float, int]] = []
        """Begin, end and status of each."""
        self._url = url
        self._client = client
        self._stopping = False
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(clients)]

    async def _ask(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            prompt = f"client {number} turn {turn} " + "word " * 60
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
            begun = time.monotonic()
            response = await self._client.post(f"{self._url}/v1/completions", json=body)
            self.answers.append((begun, time.monotonic(), response.status_code))

    async def stop(self) -> None:
        """After the answers that are under way."""
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)

    def between(self, start: float, end: float) -> int:
        """Answers that came in that time."""
        return sum(start <= at < end for _, at, _ in self.answers)


@pytest.fixture
async def start_engines(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[list[SimEngine]]]]:
    started: list[SimEngine] = []

    async def start(count: int, secret: str = SECRET) -> list[SimEngine]:
        for number in range(count):
            started.append(SimEngine(f"r{number}", tmp_path / f"engine-{number}.log", secret))
            await started[-1].start()
        return started

    yield start
    for engine in started:
        await engine.kill()


@pytest.fixture
async def start_fleet(start_engines, start_router, eventually):
    """A router over engines; all ready and heard."""

    async def start(count: int, **options: Any):
        engines = await start_engines(count)
        router = await start_router(
            [{"name": "sim", "replicas": [engine.entry for engine in engines]}],
            wait=False,
            fleet_secret="fleet-secret",
            probing=Probing(),
            **options,
        )
        replicas = [replica for _, replica in router.server.fleet.replicas()]
        await eventually(lambda: all(r.health is Health.READY for r in replicas), 120)
        await eventually(lambda: all(r.load.report is not None for r in replicas))
        return engines, router, replicas

    return start


@pytest.fixture
async def start_load() -> AsyncIterator[Callable[..., Load]]:
    loads: list[Load] = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:

        def start(url: str, clients: int) -> Load:
            loads.append(Load(url, client, clients))
            return loads[-1]

        yield start
        for load in loads:
            await load.stop()
