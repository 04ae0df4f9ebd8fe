"""Replicas that answer their probes and nothing else."""

import asyncio
from typing import Any

import pytest

from kvasir_router.fleet.circuit_breaker import BreakerState
from kvasir_router.proxy.attempts import attempt

pytestmark = pytest.mark.slow

BODY = {"model": "m", "prompt": "x"}


async def give_up(router: Any, client: Any, times: int, seconds: float = 0.6) -> None:
    """So many requests at once, none of which is answered in time."""
    headers = {"x-request-timeout": str(seconds)}
    url = f"{router.url}/v1/completions"
    responses = await asyncio.gather(
        *(client.post(url, json=BODY, headers=headers) for _ in range(times))
    )
    assert [response.status_code for response in responses] == [504] * times


async def test_clients_that_give_up_on_a_silent_replica_open_its_breaker(
    one, client, scripts, monkeypatch
) -> None:
    monkeypatch.setattr(attempt, "STALLED_SECONDS", 0.1)
    router, _ = await one(scripts.silent)
    await give_up(router, client, 4)
    replica = router.replica("m", "r0")
    assert replica.breaker.state is BreakerState.CLOSED
    await give_up(router, client, 1)
    assert replica.breaker.state is BreakerState.OPEN
    assert replica.failures["no_progress"] == 5


async def test_one_that_answers_others_meanwhile_is_only_slow(
    one, client, eventually, monkeypatch
) -> None:
    monkeypatch.setattr(attempt, "STALLED_SECONDS", 1.0)
    ends = asyncio.Event()

    async def answer(exchange: Any) -> None:
        if b"stream" not in exchange.request.body:
            await exchange.client_left()
            return
        await exchange.start_events()
        while not ends.is_set():
            await exchange.chunk(b"data: {}\n\n")
            await asyncio.sleep(0.02)
        await exchange.end()

    router, replica = await one(answer)
    body = {**BODY, "stream": True}
    streaming = asyncio.ensure_future(client.post(f"{router.url}/v1/completions", json=body))
    await eventually(lambda: len(replica.requests) == 1)
    await give_up(router, client, 6, seconds=1.5)
    assert router.replica("m", "r0").failures["no_progress"] == 0
    ends.set()
    await streaming


async def test_impatience_is_no_evidence(one, client, scripts, monkeypatch) -> None:
    monkeypatch.setattr(attempt, "STALLED_SECONDS", 10.0)
    router, _ = await one(scripts.silent)
    await give_up(router, client, 6)
    assert router.replica("m", "r0").breaker.state is BreakerState.CLOSED
