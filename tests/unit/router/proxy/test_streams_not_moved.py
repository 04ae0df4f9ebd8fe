"""Broken streams that cannot go on, and those that wait for a replica."""

import asyncio
import json
from typing import Any

import pytest
from support.broken_streams import (
    BODY,
    PATH,
    WORDS,
    code_of,
    engine,
    stream_of,
    text_of,
)

from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health
from kvasir_router.options.failover_settings import Failover
from kvasir_router.options.router_settings import QueueLimits

pytestmark = pytest.mark.slow


class TestNotMoved:
    """The stream ends with an error event, and the reason is counted."""

    @pytest.mark.parametrize(
        ("outcome", "fields"),
        [
            ("several_choices", {"n": 2}),
            ("several_choices", {"best_of": 2}),
            ("resumed_by_client", {"resume": {"output_token_ids": []}}),
        ],
    )
    async def test_by_request(self, routed, ask, outcome: str, fields: dict[str, Any]) -> None:
        router, _, b = await routed(engine(events=3), engine())
        assert code_of(await ask(router, **fields)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome=outcome) == 1
        assert await router.metric("broken_answers_total", model="m") == 1
        assert not b.requests

    @pytest.mark.parametrize(
        ("outcome", "options"),
        [
            ("off", {"failover": Failover(migration=False)}),
            ("too_large", {"failover": Failover(stream_bytes=100)}),
            ("too_large", {"failover": Failover(streams_bytes=100)}),
            ("no_contract", {"fleet_secret": None}),
        ],
    )
    async def test_by_setting(self, routed, ask, outcome: str, options: dict[str, Any]) -> None:
        router, _, b = await routed(engine(events=3), engine(), **options)
        assert code_of(await ask(router)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome=outcome) == 1
        assert not b.requests
        assert await router.metric("stream_transcript_bytes") == 0

    @pytest.mark.parametrize("field", ModelIdentity._fields)
    async def test_to_one_that_computes_otherwise(self, routed, ask, field: str) -> None:
        router, _, b = await routed(engine(events=3), engine())
        other = router.replica("m", "r1")
        other.serves = other.serves._replace(**{field: "another"})
        assert code_of(await ask(router)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome="no_replica") == 1
        assert not b.requests

    async def test_to_an_engine_that_refuses(self, routed, scripts, ask) -> None:
        router, _, b = await routed(engine(events=3), scripts.status(400))
        assert code_of(await ask(router)) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome="refused") == 1
        assert len(b.requests) == 1
        assert router.in_flight() == 0

    async def test_after_two_deaths(self, routed, ask) -> None:
        router, _, _ = await routed(engine(events=3), engine(events=1))
        assert code_of(await ask(router)) == "poison_request"
        assert await router.metric("poison_requests_total", result="ended") == 1
        assert router.in_flight() == 0

    async def test_whose_client_leaves_while_it_moves(self, routed, post, eventually) -> None:
        left = []

        async def wait(exchange: Any) -> None:
            await exchange.client_left()
            left.append(exchange)

        router, _, b = await routed(engine(events=3), wait)
        reader, writer = await router.connect()
        writer.write(post(json.dumps(BODY).encode(), target=PATH.encode()))
        await reader.readuntil(b"den ")
        await eventually(lambda: len(b.requests) == 1)
        writer.close()
        await eventually(lambda: len(left) == 1)
        assert router.in_flight() == 0


class TestWaiting:
    """A broken stream whose like replicas are full or gone waits for one of them."""

    @pytest.fixture
    async def full(self, routed, client, eventually):
        """One stream breaks, at a replica that then drains, while the other one is full."""

        async def start(**waiting: Any) -> Any:
            leaves, breaks = asyncio.Event(), asyncio.Event()

            async def first(exchange: Any) -> None:
                await exchange.start_events()
                for each in stream_of(BODY)[:3]:
                    await exchange.chunk(each)
                await breaks.wait()
                exchange.reset()

            async def second(exchange: Any) -> None:
                if b"busy" in exchange.request.body:
                    await leaves.wait()
                    await exchange.json(200, {})
                else:
                    await engine()(exchange)

            limits = QueueLimits(**{"requests": 9, "heartbeat": 0.02, **waiting})
            router, a, b = await routed(first, second, max_in_flight=1, waiting=limits)
            stream = asyncio.create_task(client.post(router.url + PATH, json=BODY))
            await eventually(lambda: len(a.requests) == 1)
            busy = {"model": "m", "messages": [{"role": "user", "content": "busy"}]}
            other = asyncio.create_task(client.post(router.url + PATH, json=busy))
            await eventually(lambda: len(b.requests) == 1)
            a.ready = 503
            await eventually(lambda: router.replica("m", "r0").health is Health.NOT_READY)
            breaks.set()
            return router, stream, other, leaves

        return start

    async def waits(self, router: Any, eventually: Any) -> None:
        model = router.server.fleet.models["m"]
        await eventually(lambda: router.server.gateway.queue.waiting(model) == 1)

    async def test_until_there_is_room(self, full, eventually) -> None:
        router, stream, other, leaves = await full()
        await self.waits(router, eventually)
        await asyncio.sleep(0.2)
        leaves.set()
        answer = (await stream).text
        assert ": waiting" in answer
        assert text_of(answer) == "".join(WORDS)
        assert (await other).status_code == 200
        assert await router.metric("stream_migrations_total", outcome="waited") == 1
        assert await router.metric("stream_migrations_total", outcome="moved") == 1
        assert await router.metric("broken_answers_total", model="m") == 0
        assert router.in_flight() == 0

    async def test_no_longer_than_the_queue_lets(self, full, eventually) -> None:
        router, stream, other, leaves = await full(timeout=0.3)
        assert code_of((await stream).text) == "replica_failed"
        assert await router.metric("stream_migrations_total", outcome="no_replica") == 1
        assert await router.metric("broken_answers_total", model="m") == 1
        leaves.set()
        await other
        assert router.in_flight() == 0

    async def test_until_its_client_leaves(self, full, eventually) -> None:
        router, stream, other, leaves = await full()
        await self.waits(router, eventually)
        stream.cancel()
        model = router.server.fleet.models["m"]
        await eventually(lambda: router.server.gateway.queue.waiting(model) == 0)
        leaves.set()
        await other
        assert router.in_flight() == 0
        assert await router.metric("stream_transcript_bytes") == 0

    async def test_until_its_own_replica_is_back(
        self, start_replica, start_router, model_entry, client
    ) -> None:
        breaks = [engine(events=3)]

        async def once(exchange: Any) -> None:
            await (breaks.pop() if breaks else engine())(exchange)

        replica = await start_replica(script=once)
        router = await start_router(
            [model_entry("m", replica)], fleet_secret="s", waiting=QueueLimits(requests=9)
        )
        answer = await client.post(router.url + PATH, json=BODY)
        assert text_of(answer.text) == "".join(WORDS)
        assert len(replica.requests) == 2
        assert await router.metric("stream_migrations_total", outcome="waited") == 1

    async def test_until_its_only_replica_has_a_successor(
        self, start_replica, start_router, model_entry, write_config, client, eventually
    ) -> None:
        """A node is drained: the one replica ends before the next one is even known."""
        breaks = asyncio.Event()

        async def leaves(exchange: Any) -> None:
            await breaks.wait()
            exchange.reset()

        replica = await start_replica(script=engine(events=3, after=leaves))
        entry = model_entry("m", replica)
        router = await start_router([entry], fleet_secret="s", waiting=QueueLimits(requests=9))
        stream = asyncio.create_task(client.post(router.url + PATH, json=BODY))
        await eventually(lambda: len(replica.requests) == 1)
        entry["replicas"][0]["draining"] = True
        write_config(router.config, [entry])
        await eventually(lambda: router.replica("m", "r0").draining)
        breaks.set()
        await self.waits(router, eventually)
        successor = model_entry("m", await start_replica(script=engine()))
        successor["replicas"][0]["id"] = "r1"
        write_config(router.config, [successor])
        assert text_of((await stream).text) == "".join(WORDS)
        assert await router.metric("stream_migrations_total", outcome="waited") == 1
