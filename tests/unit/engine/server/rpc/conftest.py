"""A gRPC server over a real channel; only the core is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.engines.rpc_server import Rig, StartRig


@pytest.fixture
async def start_rig() -> AsyncIterator[StartRig]:
    rigs: list[Rig] = []

    async def start(*args: Any, **kwargs: Any) -> Rig:
        rigs.append(Rig(*args, **kwargs))
        await rigs[-1].start()
        return rigs[-1]

    yield start
    for rig in rigs:
        await rig.close()
