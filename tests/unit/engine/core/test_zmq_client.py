"""A client and a core that are different processes."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from kvasir_engine.core.client import EngineDeadError, RequestRejectedError
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.messages import Add
from kvasir_engine.request import EngineRequest, FinishReason
from kvasir_engine.sampling_params import SamplingParams

pytestmark = pytest.mark.slow


def request(length: int = 20, **params: Any) -> EngineRequest:
    return EngineRequest("r", 0, list(range(1, length + 1)), SamplingParams(**params))


async def tokens_of(client: Any, made: EngineRequest) -> list[list[int]]:
    """Tokens by sample."""
    got: list[list[int]] = [[] for _ in range(made.params.n)]
    async for deltas in await client.submit(made):
        for delta in deltas:
            got[delta.handle - made.handle].extend(delta.token_ids)
    return got


async def idle(client: Any) -> None:
    """Return when the core holds nothing."""
    while True:
        load = client.load()
        if (load.running, load.waiting, load.kv_usage, load.step_age_seconds) == (0, 0, 0, 0):
            return
        await asyncio.sleep(0.01)


async def test_requests_of_several_clients_stay_apart(start_core: Any) -> None:
    _, clients = await start_core(clients=2)
    made = [request(10 + i, seed=i, n=1 + i % 3, max_tokens=30 + i) for i in range(24)]
    got = await asyncio.gather(*(tokens_of(clients[i % 2], each) for i, each in enumerate(made)))
    for i, samples in enumerate(got):
        assert [len(tokens) for tokens in samples] == [30 + i] * (1 + i % 3)
    assert got[3] == await tokens_of(clients[0], request(13, seed=3, max_tokens=33))
    await idle(clients[0])
    # How long the turn lasts already grows between the two questions.
    one, other = (replace(client.load(), turn_age_seconds=0.0) for client in clients)
    assert one == other


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_budget_of_reasoning_is_kept_by_the_core(start_core: Any, ranks: int) -> None:
    _, (client,) = await start_core(tensor_parallel_size=ranks)
    made = request(seed=1, max_tokens=20, n=2)
    free = await tokens_of(client, request(seed=1, max_tokens=20, n=2))
    closer = next(token for token in range(200) if token not in free[0] + free[1])
    made.thinking = Thinking(0, closer, opened=True, budget=6)
    got = await tokens_of(client, made)
    assert [each[:6] for each in got] == [each[:6] for each in free]
    assert [each[6] for each in got] == [closer] * 2
    assert [each[7:] for each in got] == [each[7:] for each in free]
    await idle(client)


async def test_a_refused_request_names_the_parameter(start_core: Any) -> None:
    _, (client,) = await start_core(max_model_len=64)
    with pytest.raises(RequestRejectedError, match="64 tokens") as caught:
        await client.submit(request(64))
    assert (caught.value.status, caught.value.param) == (400, "prompt")
    assert await tokens_of(client, request(10, max_tokens=3))


async def test_the_queue_is_bounded_in_the_core_for_all_clients(start_core: Any) -> None:
    _, clients = await start_core(
        clients=2, max_num_seqs=1, max_queued_requests=2, speed_profile="h200-llama-3.1-8b-bf16"
    )
    streams = [await clients[0].submit(request(max_tokens=1000))]
    await streams[0].__anext__()
    streams += [await clients[i].submit(request(max_tokens=1000)) for i in (0, 1)]
    with pytest.raises(RequestRejectedError, match="--max-queued-requests 2") as caught:
        await clients[1].submit(request())
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    for stream in streams:
        await stream.aclose()
    await idle(clients[0])


async def test_leaving_a_stream_aborts_its_request(start_core: Any) -> None:
    _, (client,) = await start_core()
    stream = await client.submit(request(max_tokens=2000, n=2))
    await stream.__anext__()
    await stream.aclose()
    await idle(client)


def vanish(client: Any) -> None:
    """End a client as SIGKILL does: without a word."""
    client.loop.remove_reader(client._fd)
    client._watch.cancel()
    client._context.destroy(linger=0)
    client._closed = True


async def test_what_a_vanished_client_had_running_ends_when_another_takes_its_place(
    start_core: Any,
) -> None:
    core, (first, other) = await start_core(clients=2, num_blocks=4096)
    for n in (1, 2, 3):
        await (await first.submit(request(max_tokens=2000, n=n))).__anext__()
    kept = await other.submit(request(max_tokens=2000))
    vanish(first)
    second = ZmqCoreClient(core.channels, 0)
    try:
        await second.wait_ready()
        while second.load().running != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        straggler = request(max_tokens=2000)
        straggler.handle = second._next_handle + 99
        second._send(Add.of(straggler, first._incarnation))
        assert await tokens_of(second, request(seed=1, max_tokens=9))
        assert await kept.__anext__()
        await kept.aclose()
        await idle(second)
    finally:
        second.close()


async def test_a_cancelled_submit_leaves_nothing(start_core: Any) -> None:
    _, (client,) = await start_core(max_num_seqs=1, speed_profile="h200-llama-3.1-8b-bf16")
    tasks = [asyncio.create_task(client.submit(request(max_tokens=500))) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await idle(client)


async def test_a_finished_sample_brings_nothing_more(start_core: Any) -> None:
    _, (client,) = await start_core()
    made = request(max_tokens=2000, n=2, seed=1)
    stream = await client.submit(made)
    await stream.__anext__()
    client.finish_sample(made, 0)
    client.finish_sample(made, 1)
    remaining = [delta async for deltas in stream for delta in deltas]
    assert all(delta.finish_reason is None for delta in remaining)
    await idle(client)


async def test_drain_lets_running_requests_finish_and_admits_none(start_core: Any) -> None:
    _, (client,) = await start_core(speed_profile="h200-llama-3.1-8b-bf16")
    made = request(max_tokens=40)
    stream = await client.submit(made)
    draining = asyncio.create_task(client.drain())
    await asyncio.sleep(0)  # until it has sent: one socket carries both, in order
    with pytest.raises(RequestRejectedError, match="shutting down") as caught:
        await client.submit(request())
    assert caught.value.status == 503
    got = [delta async for deltas in stream for delta in deltas]
    assert sum(len(delta.token_ids) for delta in got) == 40
    assert got[-1].finish_reason is FinishReason.LENGTH
    await draining


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_cores_death_ends_every_stream(start_core: Any, number: int) -> None:
    process, (client,) = await start_core(speed_profile="h200-llama-3.1-8b-bf16")
    stream = await client.submit(request(max_tokens=1500))
    await stream.__anext__()
    os.kill(process.process.pid, number)
    with pytest.raises(EngineDeadError):
        async for _ in stream:
            pass
    assert not client.alive
    with pytest.raises(EngineDeadError):
        await client.submit(request())


async def test_step_age_grows_while_the_core_is_stopped_in_a_step(start_core: Any) -> None:
    process, (client,) = await start_core(speed_profile="h200-llama-3.1-8b-bf16")
    stream = await client.submit(request(max_tokens=2000))
    await stream.__anext__()
    os.kill(process.process.pid, signal.SIGSTOP)
    try:
        first = client.load().step_age_seconds
        await asyncio.sleep(0.2)
        assert client.load().step_age_seconds >= first + 0.2 > 0.2
    finally:
        os.kill(process.process.pid, signal.SIGCONT)
    await stream.aclose()
    await idle(client)


async def test_a_model_that_cannot_load_says_why(start_core: Any) -> None:
    with pytest.raises(EngineDeadError, match="--max-model-len 100000 is longer"):
        await start_core(max_model_len=100_000)
