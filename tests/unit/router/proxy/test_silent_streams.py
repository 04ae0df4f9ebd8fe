"""Streams of foreign engines that do not begin, or stop in the middle."""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import pytest

from kvasir_router.fleet.circuit_breaker import BreakerState
from kvasir_router.options.failover_settings import Failover
from kvasir_router.options.router_settings import QueueLimits

PATH = "/v1/completions"
BODY = {"model": "m", "prompt": "x", "stream": True}
LIMITS = Failover(first_byte_timeout=0.05, stream_idle_timeout=0.05)


async def whole(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.chunk(b'data: {"choices": []}\n\n')
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.end()


async def only_a_head(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.client_left()


async def half(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.chunk(b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n')
    await exchange.client_left()


def pings(*before: bytes, ping: bytes = b": ping\n\n") -> Any:
    """A script that sends `before`, and then `ping` for as long as somebody reads it."""

    async def answer(exchange: Any) -> None:
        await exchange.start_events()
        for part in before:
            await exchange.chunk(part)
        left = asyncio.ensure_future(exchange.client_left())
        while not left.done():
            with suppress(ConnectionError):
                await exchange.chunk(ping)
            await asyncio.wait([left], timeout=0.001)

    return answer


def hangs_once(first: Any) -> Any:
    """A script that does `first` with its first request, and answers the others."""
    asked: list[None] = []

    async def answer(exchange: Any) -> None:
        asked.append(None)
        await (first if len(asked) == 1 else whole)(exchange)

    return answer


@pytest.fixture
def foreign(start_replica, start_router, model_entry):
    """A router of engines that have the OpenAI API alone, which takes them in turn."""

    async def start(*scripts: Any, **options: Any) -> Any:
        replicas = [await start_replica(script=script) for script in scripts]
        entry = model_entry("m", *replicas)
        for replica in entry["replicas"]:
            replica["engine"] = "openai"
        options = {"policy": "round_robin", "failover": LIMITS, **options}
        return await start_router([entry], **options), replicas

    return start


@pytest.mark.parametrize("hang", ["silent", only_a_head])
async def test_another_one_gets_what_has_no_first_byte(foreign, scripts, client, hang) -> None:
    router, (a, b) = await foreign(scripts.silent if hang == "silent" else hang, whole)
    response = await client.post(router.url + PATH, json=BODY)
    assert response.status_code == 200
    assert response.text.endswith("data: [DONE]\n\n")
    assert (len(a.requests), len(b.requests)) == (1, 1)
    assert router.replica("m", "r0").failures == {"first_byte_timeout": 1}


@pytest.mark.parametrize("waiting", [0, 10])
async def test_when_all_are_silent_the_client_is_told_and_not_banned(
    foreign, scripts, client, waiting: int
) -> None:
    router, replicas = await foreign(
        scripts.silent, scripts.silent, waiting=QueueLimits(requests=waiting)
    )
    for asked in (1, 2):
        response = await client.post(router.url + PATH, json=BODY)
        assert response.status_code == 504
        error = response.json()["error"]
        assert error["code"] == "replica_timeout"
        assert "sent no data for 0 s; try again" in error["message"]
        assert "--first-byte-timeout" in error["message"]
        assert [len(replica.requests) for replica in replicas] == [asked, asked]


async def test_a_stream_that_stops_ends_with_an_error(foreign, client) -> None:
    router, (a, b) = await foreign(half, whole)
    response = await client.post(router.url + PATH, json=BODY)
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[0])["choices"][0]["text"] == "a"
    assert json.loads(events[-1])["error"]["code"] == "replica_timeout"
    assert (len(a.requests), len(b.requests)) == (1, 0)
    assert router.replica("m", "r0").failures == {"stream_idle_timeout": 1}


@pytest.mark.parametrize(
    ("before", "limit"),
    [
        ((), "first_byte_timeout"),
        ((b'data: {"choices": []}\n\n',), "stream_idle_timeout"),
        ((b"data: {", b'"choices": []}\n\n'), "stream_idle_timeout"),
    ],
)
async def test_comments_are_no_progress(foreign, client, before, limit: str) -> None:
    router, _ = await foreign(pings(*before))
    async with asyncio.timeout(20):
        response = await client.post(router.url + PATH, json=BODY)
    assert b"".join(before).decode() in response.text
    assert ": ping\n\n" in response.text
    assert '"replica_timeout"' in response.text.splitlines()[-2]
    assert router.replica("m", "r0").failures == {limit: 1}


@pytest.mark.parametrize(
    ("before", "limit"),
    [
        ((), "first_byte_timeout"),
        ((b'event: message_start\ndata: {"type": "message_start"}\n\n',), "stream_idle_timeout"),
    ],
)
async def test_pings_of_anthropics_protocol_are_no_progress(
    foreign, client, before, limit: str
) -> None:
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    router, _ = await foreign(pings(*before, ping=ping))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with asyncio.timeout(20):
        response = await client.post(router.url + "/v1/messages", json={**body, "max_tokens": 9})
    assert b"".join(before).decode() in response.text
    assert ping.decode() in response.text
    assert '"type":"error"' in response.text.splitlines()[-2].replace(" ", "")
    assert router.replica("m", "r0").failures == {limit: 1}


async def test_replicas_that_never_begin_are_left_alone(foreign, scripts, client) -> None:
    router, _ = await foreign(scripts.silent)
    for _ in range(5):
        assert (await client.post(router.url + PATH, json=BODY)).status_code == 504
    assert router.replica("m", "r0").breaker.state is BreakerState.OPEN


async def test_what_failed_waits_for_another_one_alone(
    foreign, scripts, client, eventually
) -> None:
    """The other replica is full: the first one, which has room, is not asked again, and answers
    others meanwhile."""
    ends = asyncio.Event()

    async def busy(exchange: Any) -> None:
        await exchange.start_events()
        await exchange.chunk(b'data: {"choices": []}\n\n')
        await ends.wait()
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.end()

    router, (a, b) = await foreign(
        hangs_once(scripts.silent),
        busy,
        waiting=QueueLimits(requests=10),
        max_in_flight=1,
        failover=Failover(first_byte_timeout=0.05, stream_idle_timeout=0),
    )

    def post(prompt: str) -> Any:
        body = {**BODY, "prompt": prompt}
        return asyncio.ensure_future(client.post(router.url + PATH, json=body))

    def asked(replica: Any) -> list[str]:
        return [json.loads(request.body)["prompt"] for request in replica.requests]

    hung = post("hung")
    await eventually(lambda: asked(a) == ["hung"])
    held = post("held")
    await eventually(lambda: asked(b) == ["held"])
    await eventually(lambda: router.server.gateway.queue.waiting(router.server.fleet.models["m"]))
    assert (await post("other")).status_code == 200
    ends.set()
    assert [(await each).status_code for each in (hung, held)] == [200, 200]
    assert (asked(a), asked(b)) == (["hung", "other"], ["held", "hung"])


async def test_an_earlier_wait_does_not_count_after_a_failure(foreign, client, eventually) -> None:
    """The queue's timeout is for each wait: the first byte that did not come may take longer."""
    ends = {"a": asyncio.Event(), "b": asyncio.Event()}
    later = 0.0

    async def answer(exchange: Any) -> None:
        nonlocal later
        prompt = json.loads(exchange.request.body)["prompt"]
        if prompt == "hung" and exchange.request in a.requests:
            later = 1_000.0
            await exchange.client_left()
            return
        await exchange.start_events()
        await exchange.chunk(b'data: {"choices": []}\n\n')
        if prompt in ends:
            await ends[prompt].wait()
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.end()

    router, (a, b) = await foreign(
        answer,
        answer,
        waiting=QueueLimits(requests=10),
        max_in_flight=1,
        failover=Failover(first_byte_timeout=0.05, stream_idle_timeout=0),
    )
    queue, model = router.server.gateway.queue, router.server.fleet.models["m"]
    queue._clock = lambda: time.monotonic() + later

    def post(prompt: str) -> Any:
        body = {**BODY, "prompt": prompt}
        return asyncio.ensure_future(client.post(router.url + PATH, json=body))

    held = [post("a")]
    await eventually(lambda: len(a.requests) == 1)
    held.append(post("b"))
    await eventually(lambda: len(b.requests) == 1)
    hung = post("hung")
    await eventually(lambda: queue.waiting(model) == 1)
    ends["a"].set()
    await eventually(lambda: later and queue.waiting(model) == 1)
    ends["b"].set()
    assert [(await each).status_code for each in (hung, *held)] == [200, 200, 200]
    assert (len(a.requests), len(b.requests)) == (2, 2)


async def test_unary_answers_have_no_limit(foreign, client, eventually) -> None:
    ends = asyncio.Event()

    async def answer(exchange: Any) -> None:
        if json.loads(exchange.request.body).get("stream"):
            await exchange.client_left()
        else:
            await ends.wait()
            await exchange.json(200, {"choices": []})

    router, (replica,) = await foreign(answer)
    unary = asyncio.ensure_future(client.post(router.url + PATH, json={**BODY, "stream": False}))
    await eventually(lambda: replica.requests)
    assert (await client.post(router.url + PATH, json=BODY)).status_code == 504
    ends.set()
    assert (await unary).status_code == 200


async def test_kvasirs_engines_have_none(
    start_replica, start_router, model_entry, scripts, client, eventually
) -> None:
    ends = asyncio.Event()

    async def slow(exchange: Any) -> None:
        await ends.wait()
        await whole(exchange)

    own, other = await start_replica(script=slow), await start_replica(script=scripts.silent)
    entry = model_entry("foreign", other)
    entry["replicas"][0]["engine"] = "openai"
    router = await start_router([model_entry("m", own), entry], failover=LIMITS)
    waiting = asyncio.ensure_future(client.post(router.url + PATH, json=BODY))
    await eventually(lambda: own.requests)
    response = await client.post(router.url + PATH, json={**BODY, "model": "foreign"})
    assert response.status_code == 504
    ends.set()
    assert (await waiting).status_code == 200


async def test_the_time_for_the_first_byte_is_learnt(foreign, client) -> None:
    router, _ = await foreign(whole, policy="kv_aware", failover=Failover())
    rate = router.replica("m", "r0").prefill
    unknown = rate.allowance(1)
    await client.post(router.url + PATH, json={**BODY, "prompt": "word " * 4_000})
    assert rate.tokens_per_second > 0
    assert rate.allowance(1) < unknown
