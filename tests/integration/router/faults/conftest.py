"""Simulated engines as processes of their own, with all their feeds, and a load on them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from faults.processes import MODEL, SECRET, SimEngine
from support.routers.fault_load import Load

from kvasir_router.fleet.replica import Health
from kvasir_router.options.router_settings import Probing


@pytest.fixture
async def start_engines(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[list[SimEngine]]]]:
    started: list[SimEngine] = []

    async def start(
        count: int, secret: str = SECRET, options: Sequence[str] = ()
    ) -> list[SimEngine]:
        for number in range(count):
            started.append(SimEngine(f"r{number}", tmp_path, secret, options))
            await started[-1].start()
        return started

    yield start
    for engine in started:
        await engine.kill()


@pytest.fixture
async def start_fleet(start_engines, start_router, eventually):
    """A router over engines; all ready and heard."""

    async def start(count: int, *engine_options: str, **options: Any):
        engines = await start_engines(count, options=engine_options)
        router = await start_router(
            [{"name": MODEL, "replicas": [engine.entry for engine in engines]}],
            wait=False,
            fleet_secret=SECRET,
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
