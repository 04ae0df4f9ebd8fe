"""The core in a process of its own, simulated, on the tiny model's configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.settings import make_settings

StartCore = Callable[..., Awaitable[tuple[CoreProcess, list[ZmqCoreClient]]]]


@pytest.fixture
def tiny_dir() -> Path:
    import kvasir_engine

    return Path(kvasir_engine.__file__).parent / "assets" / "tiny"


@pytest.fixture
async def start_core(tiny_dir: Path) -> AsyncIterator[StartCore]:
    """start_core(clients=1, **settings): a core process and its clients, once it serves."""
    started: list[tuple[CoreProcess, list[ZmqCoreClient], asyncio.Task[int]]] = []

    async def start(clients: int = 1, **settings: Any) -> tuple[CoreProcess, list[ZmqCoreClient]]:
        options = {"device": "sim", "num_blocks": 512, **settings}
        config = CoreConfig(
            make_settings(str(tiny_dir), **options), str(tiny_dir), num_clients=clients
        )
        process = CoreProcess(config)
        watch = asyncio.create_task(asyncio.to_thread(process.wait))
        connected = [ZmqCoreClient(process.channels, i) for i in range(clients)]
        started.append((process, connected, watch))
        for client in connected:
            await client.wait_ready()
        return process, connected

    yield start
    for process, clients, watch in started:
        for client in clients:
            client.close()
        await asyncio.to_thread(process.stop)
        await watch
