"""Deadlines of requests, and hedges: a second attempt when the first is late."""

import asyncio
import json
from typing import Any

import pytest

from kvasir_router.options.failover_settings import Failover

pytestmark = pytest.mark.slow

BODY = b'{"model": "m", "prompt": "a"}'


class TestDeadline:
    async def test_it_ends_the_request_and_the_replicas_work(self, one, client, eventually) -> None:
        left = asyncio.Event()

        async def work(exchange: Any) -> None:
            await exchange.client_left()
            left.set()

        router, _ = await one(work)
        headers = {"x-request-timeout": "0.05"}
        response = await client.post(f"{router.url}/score", content=BODY, headers=headers)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        await asyncio.wait_for(left.wait(), 30)
        assert router.in_flight() == 0
        assert await router.metric("deadlines_exceeded_total", model="m") == 1

    async def test_a_stream_ends_with_an_error_event(self, one, client) -> None:
        async def stall(exchange: Any) -> None:
            await exchange.start_events()
            await exchange.chunk(b"data: 1\n\n")
            await exchange.client_left()

        router, _ = await one(stall, failover=Failover(request_timeout=0.1))
        response = await client.post(f"{router.url}/score", content=BODY)
        events = response.text.strip().split("\n\n")
        assert events[0] == "data: 1"
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert error["code"] == "deadline_exceeded"

    async def test_the_header_wins_over_the_default(self, one, scripts, client) -> None:
        slow = scripts.after(0.3, scripts.ok)
        router, _ = await one(slow, failover=Failover(request_timeout=0.05))
        headers = {"x-request-timeout": "30"}
        response = await client.post(f"{router.url}/score", content=BODY, headers=headers)
        assert response.json() == {"ok": True}

    @pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon", "1e999"])
    async def test_what_is_no_time_is_refused(self, one, scripts, client, value: str) -> None:
        router, replica = await one(scripts.ok)
        headers = {"x-request-timeout": value}
        response = await client.post(f"{router.url}/score", content=BODY, headers=headers)
        assert response.status_code == 400
        assert "x-request-timeout" in response.json()["error"]["message"]
        assert not replica.requests


class TestHedging:
    @pytest.fixture
    def hedged(self, two):
        async def start(first: Any, second: Any, **options: Any) -> Any:
            failover = Failover(**{"hedging": True, **options})
            router, a, b = await two(first, second, policy="round_robin", failover=failover)
            delay = router.server.fleet.models["m"].hedge_delay
            for _ in range(20):
                delay.answered(0.05)
            return router, a, b

        return start

    async def test_a_late_answer_is_overtaken_and_its_replica_freed(
        self, hedged, scripts, client, eventually
    ) -> None:
        router, a, b = await hedged(scripts.silent, scripts.ok)
        assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(a.requests) == len(b.requests) == 1
        assert await router.metric("hedges_total", result="sent") == 1
        assert await router.metric("hedges_total", result="won") == 1
        await eventually(lambda: router.in_flight() == 0)

    async def test_the_first_one_may_still_win(self, hedged, scripts, client, eventually) -> None:
        left = asyncio.Event()

        async def work(exchange: Any) -> None:
            await exchange.client_left()
            left.set()

        router, _, b = await hedged(scripts.after(0.3, scripts.ok), work)
        assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(b.requests) == 1
        await asyncio.wait_for(left.wait(), 30)
        assert await router.metric("hedges_total", result="won") == 0
        assert router.in_flight() == 0

    @pytest.mark.parametrize("failing", ["reset", "status"])
    async def test_one_that_fails_leaves_it_to_the_other(
        self, hedged, scripts, client, failing: str
    ) -> None:
        fails = scripts.reset if failing == "reset" else scripts.status(500)
        router, a, b = await hedged(scripts.after(0.2, scripts.ok), scripts.after(0.05, fails))
        assert (await client.post(f"{router.url}/score", content=BODY)).json() == {"ok": True}
        assert len(a.requests) == len(b.requests) == 1
        assert router.in_flight() == 0

    async def test_streams_and_quick_answers_are_not_hedged(self, hedged, scripts, client) -> None:
        router, _, b = await hedged(scripts.after(0.15, scripts.ok), scripts.ok)
        body = b'{"model": "m", "stream": true}'
        assert (await client.post(f"{router.url}/score", content=body)).json() == {"ok": True}
        await client.post(f"{router.url}/score", content=BODY)
        assert len(b.requests) == 1
        assert await router.metric("hedges_total", result="sent") == 0

    async def test_they_are_on_the_budget(self, hedged, scripts, client) -> None:
        router, a, b = await hedged(scripts.after(0.15, scripts.ok), scripts.ok)
        model = router.server.fleet.models["m"]
        while model.budget.spend(asyncio.get_running_loop().time()):
            pass
        await client.post(f"{router.url}/score", content=BODY)
        assert (len(a.requests), len(b.requests)) == (1, 0)

    async def test_off_by_default(self, two, scripts, client) -> None:
        router, a, b = await two(scripts.after(0.15, scripts.ok), scripts.ok, policy="round_robin")
        for _ in range(20):
            router.server.fleet.models["m"].hedge_delay.answered(0.01)
        await client.post(f"{router.url}/score", content=BODY)
        assert (len(a.requests), len(b.requests)) == (1, 0)
