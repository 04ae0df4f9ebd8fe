"""Streams of a replica that is expected to end go on elsewhere, while it serves as yet."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from support.broken_streams import BODY, PATH, WORDS, engine, text_of

from kvasir_router.discovery.specs import Departure, ModelSpec
from kvasir_router.fleet.replica import Health, LoadStreamState


def departs(router: Any, *names: str, when: Departure = Departure.NOW) -> None:
    """Have discovery say so of these replicas of m, and of no other one."""
    fleet = router.server.fleet
    spec: ModelSpec = fleet.models["m"].spec
    replicas = tuple(
        replace(each, departure=when if each.id in names else Departure.NONE)
        for each in spec.replicas
    )
    fleet.apply((replace(spec, replicas=replicas),))


def in_flight(router: Any) -> tuple[int, int]:
    """The requests at each replica of m: a stream that moves is counted at its new one at once,
    before a byte is sent or read."""
    first, second = (router.replica("m", name).in_flight for name in ("r0", "r1"))
    return first, second


@pytest.fixture
def told(routed):
    """Start a router whose first replica stops in the midst of a stream, and tells when."""

    async def start(**options: Any) -> tuple[Any, Any, asyncio.Event, asyncio.Event]:
        began, left = asyncio.Event(), asyncio.Event()

        async def hold(exchange: Any) -> None:
            began.set()
            await exchange.client_left()
            left.set()

        router, _, second = await routed(engine(events=3, after=hold), engine(), **options)
        return router, second, began, left

    return start


async def test_a_stream_moves_at_once_and_whole(told, ask) -> None:
    router, second, began, left = await told()
    answer = asyncio.ensure_future(ask(router))
    await began.wait()
    departs(router, "r0")
    assert text_of(await answer) == "".join(WORDS)
    await left.wait()
    assert json.loads(second.requests[0].body)["resume"]["output_token_ids"] == [0, 1]
    assert await router.metric("retries_total", reason="departing") == 1
    assert router.replica("m", "r0").failures == {}
    assert router.replica("m", "r0").health is Health.READY
    assert router.in_flight() == 0


async def test_one_that_is_only_to_leave_later_keeps_its_streams(told, ask) -> None:
    router, second, began, left = await told()
    answer = asyncio.ensure_future(ask(router))
    await began.wait()
    departs(router, "r0", when=Departure.LATER)
    assert text_of(await ask(router)) == "".join(WORDS), "new requests go to the other one"
    assert "resume" not in json.loads(second.requests[0].body)
    assert not left.is_set()
    departs(router, "r0")
    assert text_of(await answer) == "".join(WORDS)


async def test_a_stream_stays_until_another_replica_can_take_it(told, ask) -> None:
    router, _, began, _ = await told()
    answer = asyncio.ensure_future(ask(router))
    await began.wait()
    departs(router, "r0", "r1")
    first = router.replica("m", "r0")
    first.observed(Health.READY)
    assert in_flight(router) == (1, 0), "nowhere is better than here"
    departs(router, "r0")
    assert text_of(await answer) == "".join(WORDS)


async def test_one_that_stays_after_all_keeps_its_streams(told, ask) -> None:
    router, _, began, _ = await told()
    answer = asyncio.ensure_future(ask(router))
    await began.wait()
    departs(router, "r0", "r1")
    departs(router)
    router.replica("m", "r0").observed(Health.READY)
    assert in_flight(router) == (1, 0)
    answer.cancel()


async def test_a_request_without_a_stream_ends_where_it_is(routed, post) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(exchange: Any) -> None:
        began.set()
        await goes_on.wait()
        await exchange.json(200, {"choices": []})

    router, _, second = await routed(slow, engine())
    body = json.dumps({**BODY, "stream": False}).encode()
    request = post(body, b"Connection: close", target=PATH.encode())
    answer = asyncio.ensure_future(router.exchange(request))
    await began.wait()
    departs(router, "r0")
    goes_on.set()
    assert b" 200 " in (await answer).splitlines()[0]
    assert not second.requests


async def test_the_last_replica_serves_until_its_end(routed, ask) -> None:
    router, _, _ = await routed(engine(), engine())
    departs(router, "r0", "r1")
    assert text_of(await ask(router)) == "".join(WORDS)


async def test_a_stream_moves_when_its_engine_says_that_it_ends(told, ask) -> None:
    router, second, began, left = await told()
    answer = asyncio.ensure_future(ask(router))
    await began.wait()
    router.replica("m", "r0").heard(LoadStreamState.LEAVING)
    assert text_of(await answer) == "".join(WORDS)
    await left.wait()
    assert json.loads(second.requests[0].body)["resume"]["output_token_ids"] == [0, 1]
    assert await router.metric("retries_total", reason="departing") == 1
    assert await router.metric("replica_leaving", replica="r0") == 1
