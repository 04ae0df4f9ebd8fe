"""Simulated ranks: processes as real ones are, the tokens of one, and one end for all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.parallel.parallel_build import build_parallel_runner
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.settings import SettingsError, make_settings

TINY = resolve_model("builtin://kvasir-tiny")
SECONDS_TO_END = 5


@asynccontextmanager
async def started(**options: object) -> AsyncIterator[tuple[CoreProcess, ZmqCoreClient]]:
    settings = make_settings(str(TINY), device="sim", **options)
    core = CoreProcess(CoreConfig(settings, str(TINY), 1))
    client = ZmqCoreClient(core.channels)
    watch = asyncio.create_task(asyncio.to_thread(core.wait))
    try:
        await client.wait_ready()
        yield core, client
    finally:
        client.close()
        core.stop()
        await watch


async def tokens(client: ZmqCoreClient, max_tokens: int) -> list[int]:
    sampling = SamplingParams(seed=3, max_tokens=max_tokens, ignore_eos=True)
    stream = await client.submit(EngineRequest("test", 0, list(range(20)), sampling))
    return [token async for deltas in stream for delta in deltas for token in delta.token_ids]


async def test_a_killed_rank_ends_every_process_and_what_runs(processes) -> None:
    async with started() as (_, client):
        expected = await tokens(client, 40)
    slow = {"speed_profile": "slow", "tensor_parallel_size": 2}
    async with started(**slow) as (core, client):
        (other,) = processes.children(core.process.pid)
        assert await tokens(client, 4) == expected[:4]
        streaming = asyncio.create_task(tokens(client, 1000))
        while client.load().running == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(other, signal.SIGKILL)
        async with asyncio.timeout(SECONDS_TO_END):
            assert await asyncio.to_thread(core.process.wait) == 1
        with pytest.raises(EngineDeadError, match=r"^tensor-parallel rank 1 ended \(signal 9\)$"):
            await streaming
        processes.wait_until_ended(other, core.process.pid)


async def test_ranks_end_with_their_core(processes) -> None:
    async with started(tensor_parallel_size=4) as (core, client):
        others = processes.children(core.process.pid)
        assert len(others) == 3
        assert len(await tokens(client, 30)) == 30
    processes.wait_until_ended(*others)


def test_a_size_that_does_not_divide_the_model_is_refused() -> None:
    settings = make_settings(str(TINY), device="sim", tensor_parallel_size=5)
    with pytest.raises(SettingsError, match="--tensor-parallel-size 5 does not divide this model"):
        build_parallel_runner(settings, TINY)
