"""A policy that raises: the request it raised for is answered, and nothing else notices."""

import asyncio

import pytest

from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.policy.round_robin import RoundRobin


class Fragile(RoundRobin):
    """Raise in `where` for a query whose body holds `bad`."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def _maybe_raise(self, where: str, query) -> None:
        if where == self._where and b"bad" in query.request.body:
            raise ZeroDivisionError("a policy's defect")

    def choose(self, query, candidates):
        self._maybe_raise("choose", query)
        return super().choose(query, candidates)

    def sent(self, query, choice) -> None:
        self._maybe_raise("sent", query)
        super().sent(query, choice)

    def ended(self, query, choice, usage) -> None:
        if self._where == "ended":
            raise ZeroDivisionError("a policy's defect")

    def forget_replica(self, replica) -> None:
        if self._where == "forget":
            raise ZeroDivisionError("a policy's defect")


BODY = {"model": "m", "input": "a"}


async def held(exchange) -> None:
    """Answers when the test says so."""
    exchange.request.go = asyncio.Event()
    await exchange.request.go.wait()
    await exchange.json(200, {})


async def test_a_request_whose_policy_raises_is_answered_500(one, client) -> None:
    router, replica = await one()
    router.server.fleet.models["m"].policy = Fragile("choose")
    answer = await client.post(f"{router.url}/score", json=BODY | {"input": "bad"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "policy_failed"
    assert (await client.post(f"{router.url}/score", json=BODY)).status_code == 200
    assert len(replica.requests) == 1
    assert router.in_flight() == 0


@pytest.mark.slow
async def test_one_that_waits_fails_alone_and_the_others_go_on(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    replica = await start_replica(script=held)
    router = await start_router(
        [model_entry("m", replica)], max_in_flight=1, waiting=QueueLimits(requests=9, timeout=4.0)
    )
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]

    async def ask(text: str) -> int:
        answer = await client.post(f"{router.url}/score", json=BODY | {"input": text})
        return answer.status_code

    first = asyncio.create_task(ask("first"))
    await eventually(lambda: len(replica.requests) == 1)
    model.policy = Fragile("choose")
    bad = asyncio.create_task(ask("bad"))
    await eventually(lambda: queue.waiting(model) == 1)
    good = asyncio.create_task(ask("good"))
    await eventually(lambda: queue.waiting(model) == 2)
    replica.requests[0].go.set()
    assert await first == 200
    assert await bad == 500
    await eventually(lambda: len(replica.requests) == 2)
    late = asyncio.create_task(ask("late"))
    assert await late == 429  # its patience ended: the watch lives
    replica.requests[1].go.set()
    assert await good == 200


@pytest.mark.parametrize("where", ["sent", "ended", "forget"])
async def test_a_policy_that_cannot_take_note_fails_nothing(
    start_replica, start_router, model_entry, write_config, client, eventually, where
) -> None:
    router = await start_router([model_entry("m", await start_replica())])
    model = router.server.fleet.models["m"]
    model.policy = Fragile(where)
    for _ in range(2):
        answer = await client.post(f"{router.url}/score", json=BODY | {"input": "bad"})
        assert answer.status_code == 200
    assert router.in_flight() == 0
    assert await router.metric("requests_total", model="m", code="200") == 2
    other = await start_replica()
    write_config(router.config, [model_entry("m", other)])
    await eventually(lambda: [each.spec.port for each in model.replicas.values()] == [other.port])
