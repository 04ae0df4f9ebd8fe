"""A tensor-parallel core process: one dead rank ends every process, with the reason."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.settings import make_settings

SECONDS_TO_END = 5
REASON = r"^tensor-parallel rank 1 ended \(signal 9\)$"
PROMPT = list(range(20))


@asynccontextmanager
async def started(
    model_dir: Path, **settings: object
) -> AsyncIterator[tuple[CoreProcess, ZmqCoreClient]]:
    core = CoreProcess(CoreConfig(make_settings(str(model_dir), **settings), str(model_dir), 1))
    client = ZmqCoreClient(core.channels)
    watch = asyncio.create_task(asyncio.to_thread(core.wait))
    try:
        yield core, client
    finally:
        client.close()
        core.stop()
        await watch


def request(max_tokens: int) -> EngineRequest:
    return EngineRequest("test", 0, PROMPT, SamplingParams(temperature=0, max_tokens=max_tokens))


async def tokens(client: ZmqCoreClient, max_tokens: int) -> list[int]:
    stream = await client.submit(request(max_tokens))
    return [token async for deltas in stream for delta in deltas for token in delta.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _one_thread_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.parametrize("in_a_step", [False, True])
async def test_a_killed_rank_ends_every_process(
    in_a_step: bool, hf_model_dir, make_engine, job, processes
) -> None:
    model_dir = hf_model_dir("llama3")
    (one_rank,) = make_engine(model_dir).run(
        [job(PROMPT, SamplingParams(temperature=0, max_tokens=30))]
    )
    async with started(model_dir, max_model_len=400, tensor_parallel_size=2) as (core, client):
        await client.wait_ready()
        assert await tokens(client, 30) == one_rank[0].tokens
        (other,) = processes.children(core.process.pid)
        streaming = None
        if in_a_step:
            # A stopped rank leaves rank 0 stuck in a collective.
            streaming = asyncio.create_task(tokens(client, 300))
            await until(lambda: client.load().step_age_seconds > 0)
            os.kill(other, signal.SIGSTOP)
            await until(lambda: client.load().step_age_seconds > 0.3)
        os.kill(other, signal.SIGKILL)
        async with asyncio.timeout(SECONDS_TO_END):
            assert await asyncio.to_thread(core.process.wait) == 1
        if streaming is not None:
            with pytest.raises(EngineDeadError, match=REASON):
                await streaming
        with pytest.raises(EngineDeadError, match=REASON):
            await client.submit(request(1))
        processes.wait_until_ended(other, core.process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_stopped_rank_ends_every_process(rank: int, hf_model_dir, processes) -> None:
    settings = {"max_model_len": 400, "tensor_parallel_size": 2}
    async with started(hf_model_dir("llama3"), **settings) as (core, client):
        await client.wait_ready()
        (other,) = processes.children(core.process.pid)
        streaming = asyncio.create_task(tokens(client, 300))
        await until(lambda: client.load().step_age_seconds > 0)
        os.kill((core.process.pid, other)[rank], signal.SIGSTOP)
        async with asyncio.timeout(SECONDS_TO_END):
            status = await asyncio.to_thread(core.process.wait)
        processes.wait_until_ended(other, core.process.pid)
        if rank == 0:
            assert status == -signal.SIGKILL
            streaming.cancel()
        else:
            assert status == 1
            with pytest.raises(EngineDeadError, match=r"^tensor-parallel rank 1 was stopped"):
                await streaming


async def test_a_size_that_cannot_work_is_the_users_to_mend(hf_model_dir) -> None:
    async with started(hf_model_dir("llama3"), tensor_parallel_size=3) as (core, client):
        with pytest.raises(EngineDeadError, match=r"--tensor-parallel-size 3 .* are 1, 2, 4\.$"):
            await client.wait_ready()
        assert await asyncio.to_thread(core.process.wait) == 2
