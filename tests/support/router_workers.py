"""Routers of several processes, and which of them is what."""

import asyncio
import inspect
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for it; it may be a coroutine function, and may fail while nobody answers."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                found = condition()
                if await found if inspect.isawaitable(found) else found:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.01)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Awaitable[None]]:
    return until


class Processes:
    """A running router with workers."""

    def __init__(self, router: Any) -> None:
        self.router = router
        self.url = router.url
        self.admin_url = router.admin_url

    @property
    def supervisor(self) -> int:
        return self.router.process.pid

    def pids(self) -> dict[str, int]:
        """Process ids by name: index, worker0, ...; the younger one where two have the same."""
        children = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text()
        found = {}
        for pid in map(int, children.split()):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            if name.startswith("router-"):
                found[name.removeprefix("router-")] = pid
        return found

    def send(self, name: str, number: signal.Signals) -> int:
        pid = self.pids()[name]
        os.kill(pid, number)
        return pid

    async def replaced(self, name: str, pid: int) -> None:
        """Wait for another process of that name."""
        await until(lambda: self.pids().get(name) not in (None, pid))


@pytest.fixture
def start_workers(start_process) -> Callable[..., Awaitable[Processes]]:
    async def start(
        config: Path, workers: int = 2, *options: str, path: Path | None = None
    ) -> Processes:
        router = await start_process(config, "--workers", str(workers), *options, path=path)
        processes = Processes(router)
        await until(lambda: len(processes.pids()) == workers + 1)
        return processes

    return start


class Clients:
    """Each with a connection of its own, one request after the other; what went wrong is kept."""

    def __init__(self, url: str, count: int, body: dict[str, Any]) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._body = body
        self._stopping = False
        self.answered = 0
        self.lost: list[str] = []
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(count)]

    async def _ask(self, number: int) -> None:
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            while not self._stopping:
                try:
                    response = await http.post(self._url, json=self._body)
                except httpx.TransportError as error:
                    self.lost.append(repr(error))
                else:
                    if response.status_code == 200:
                        self.answered += 1
                    else:
                        self.lost.append(f"{response.status_code} {response.text}")
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)


@pytest.fixture
async def start_clients():
    started = []

    def start(url: str, count: int, **body: Any) -> Clients:
        message = {"role": "user", "content": "hello " * 20}
        started.append(Clients(url, count, {"model": "m", "messages": [message], **body}))
        return started[-1]

    yield start
    for clients in started:
        await clients.stop()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


@pytest.fixture
def fleet_of_two(config, write_config, model_entry, start_replica):
    """Two replicas of model m, in a discovery file."""

    async def make(**options: Any):
        replicas = [await start_replica(**options) for _ in range(2)]
        write_config(config, [model_entry("m", *replicas)])
        return replicas

    return make
