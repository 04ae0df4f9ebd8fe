"""Real engines behind a router, and what ends them."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from support.routers.failover_fleet import Cutter, Engine, OpenAIClient

from kvasir.cli.local.ports import free_ports
from kvasir_router.options.router_settings import QueueLimits

SECRET = "fleet-secret-of-the-tests"


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


@pytest.fixture(scope="module")
def pair(engines: Callable[..., Any]) -> list[Engine]:
    """Two engines of model m."""
    return engines(2, "--served-model-name", "m")  # type: ignore[no-any-return]


@pytest.fixture
def cut_router(
    pair: list[Engine], behind_cutters: Callable[..., Any], start_router: Callable[..., Any]
) -> Callable[..., Any]:
    """cut_router(**options): a router for both engines, and the list of breaks to come."""

    async def start(**options: Any) -> Any:
        cutters, plan = await behind_cutters(pair)
        replicas = [
            {"id": f"r{i}", "url": cutter.url, "engine": "kvasir"}
            for i, cutter in enumerate(cutters)
        ]
        # The other engine may be busy for longer than its probe may take: then a stream waits
        settings = {"policy": "round_robin", "waiting": QueueLimits(), **options}
        models = [{"name": "m", "replicas": replicas}]
        return await start_router(models, fleet_secret=SECRET, **settings), plan

    return start


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
