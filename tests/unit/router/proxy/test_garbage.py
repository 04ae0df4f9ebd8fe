"""Requests are freed when they are over, not when the garbage collector comes by: their bodies may
be large, and collecting costs latency."""

import gc
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.attempts.attempts import Attempts
from kvasir_router.proxy.client_response import ClientAnswer
from kvasir_router.proxy.relay import Relay
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query

pytestmark = pytest.mark.slow


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    kinds = (UpstreamRequest, Attempts, ClientAnswer, Relay, Query)
    # By type(): isinstance() would wake lazy objects of other libraries.
    found = Counter(type(each).__name__ for each in gc.get_objects() if type(each) in kinds)
    requests = [each for each in gc.get_objects() if type(each) is Request and each.body]
    return found + Counter(request=len(requests))


async def answer(exchange: Any) -> None:
    how = json.loads(exchange.request.body)["how"]
    if how == "break":
        exchange.reset()
    elif how == "error":
        await exchange.json(500, {})
    elif how == "whole":
        await exchange.json(200, {})
    else:
        await exchange.start_events()
        for _ in range(3):
            await exchange.chunk(b"data: {}\n\n")
        await exchange.chunk(b"data: [DONE]\n\n")
        if how == "stream":
            await exchange.end()
        else:
            exchange.reset()


@pytest.mark.parametrize("policy", ["round_robin", "kv_aware"])
@pytest.mark.parametrize("how", ["whole", "stream", "error", "break", "cut stream"])
@pytest.mark.usefixtures("no_collector")
async def test_nothing_is_left_of_a_request(
    start_replica, start_router, model_entry, client, eventually, how: str, policy: str
) -> None:
    replica = await start_replica(script=answer)
    router = await start_router([model_entry("m", replica)], policy=policy)
    before = alive()
    for _ in range(3):
        body = {"model": "m", "how": how, "stream": "stream" in how, "messages": []}
        await client.post(f"{router.url}/v1/chat/completions", json=body)
    await eventually(lambda: router.in_flight() == 0)
    # The connection keeps its last one.
    assert sum((alive() - before).values()) <= 1, alive() - before
