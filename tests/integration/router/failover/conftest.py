"""Real engines behind a router, and what ends them."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from support.routers.failover_fleet import Cutter, Engine, OpenAIClient

from kvasir.cli.local.ports import free_ports


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Engine]]]:
    """engines(count, *flags): so many of one kind, ready; killed after the module."""
    directory = tmp_path_factory.mktemp("engines")
    started: list[Engine] = []

    def start(count: int, *flags: str) -> list[Engine]:
        made = []
        for _ in range(count):
            log = directory / f"{len(started)}.log"
            made.append(Engine(("builtin://kvasir-tiny", *flags), free_ports(1)[0], log))
            made[-1].start()
            started.append(made[-1])
        for engine in made:
            engine.wait_ready()
        return made

    yield start
    for engine in started:
        if engine.process.poll() is None:
            engine.kill()


@pytest.fixture
async def behind_cutters() -> AsyncIterator[Callable[..., Any]]:
    """behind_cutters(engines): their relays, and the list of breaks to come: (after so many
    events, and so many bytes more), one a stream, of whichever engine."""
    started: list[Cutter] = []

    async def start(engines: list[Engine]) -> tuple[list[Cutter], list[tuple[int, int]]]:
        plan: list[tuple[int, int]] = []
        made = [Cutter(engine, plan) for engine in engines]
        for cutter in made:
            await cutter.start()
            started.append(cutter)
        return made, plan

    yield start
    for cutter in started:
        await cutter.stop()


@pytest.fixture
async def openai_client() -> AsyncIterator[Callable[[str], OpenAIClient]]:
    """openai_client(url)."""
    made: list[OpenAIClient] = []

    def make(url: str) -> OpenAIClient:
        made.append(OpenAIClient(url))
        return made[-1]

    yield make
    for client in made:
        await client.close()
