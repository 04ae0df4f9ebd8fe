"""Requests to a model with a canary, through a router on real sockets."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from kvasir.wire.canary_samples import CanarySamples, read_samples
from kvasir_router.discovery.specs import MatchSpec, ModelSpec, SplitSpec

SPLIT = SplitSpec("new.1.1", "new", 0.5, min_samples=50)


def answer(name: str, status: int = 200) -> Any:
    async def script(exchange: Any) -> None:
        await exchange.json(status, {"served_by": name})

    return script


async def stream(exchange: Any) -> None:
    """Eleven tokens, and what they were."""
    await exchange.start_events()
    for _ in range(3):
        await exchange.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    usage = {"prompt_tokens": 5, "completion_tokens": 11, "total_tokens": 16}
    await exchange.chunk(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.end()


class Pair:
    """A router before a stable replica, r0, and a canary, r1."""

    def __init__(self, router: Any, stable: Any, canary: Any, client: Any) -> None:
        self.router = router
        self.stable = stable
        self.canary = canary
        self.client = client
        [spec] = (router.server.fleet.models["m"].spec,)
        old, new = spec.replicas
        self.spec = replace(
            spec, replicas=(replace(old, revision="old"), replace(new, revision="new", canary=True))
        )

    async def split(self, split: SplitSpec | None, eventually: Any) -> None:
        spec: ModelSpec = replace(self.spec, split=split)
        self.router.server.fleet.apply((spec,))
        model = self.router.server.fleet.models["m"]
        await eventually(lambda: len(model.serving) == 2)

    async def ask(self, **more: Any) -> Any:
        headers = more.pop("headers", {})
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
        url = f"{self.router.url}/v1/chat/completions"
        return await self.client.post(url, json=body, headers=headers)

    async def samples(self) -> CanarySamples:
        found = await self.client.get(f"{self.router.admin_url}/canaries")
        return read_samples(found.json()["models"]["m"])


@pytest.fixture
async def pair(
    start_router: Any, start_replica: Any, model_entry: Any, client: Any, eventually: Any
) -> Pair:
    stable = await start_replica(script=answer("old"))
    canary = await start_replica(script=answer("new"))
    router = await start_router([model_entry("m", stable, canary)])
    found = Pair(router, stable, canary, client)
    await found.split(SPLIT, eventually)
    return found


async def test_requests_are_split_and_counted(pair: Pair) -> None:
    served = [(await pair.ask(user=f"u{n}")).json()["served_by"] for n in range(40)]
    assert 0 < served.count("new") < 40
    assert len(pair.canary.requests) == served.count("new")
    again = [(await pair.ask(user=f"u{n}")).json()["served_by"] for n in range(3)]
    assert again == served[:3], "a user stays with a revision"
    samples = await pair.samples()
    assert samples.split == SPLIT.id
    assert samples.canary.answers + samples.stable.answers == 43
    assert samples.canary.answers == len(pair.canary.requests)


async def test_a_header_sends_to_the_canary(pair: Pair, eventually: Any) -> None:
    matches = (MatchSpec("x-canary", "yes"),)
    await pair.split(replace(SPLIT, weight=0.0, matches=matches), eventually)
    for headers, served in (({"X-Canary": "yes"}, "new"), ({"X-Canary": "no"}, "old"), ({}, "old")):
        assert (await pair.ask(headers=headers)).json()["served_by"] == served


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_fails_at_the_canary_is_answered_by_the_stable_revision(
    pair: Pair, status: int
) -> None:
    pair.canary.script = answer("new", status)
    answers = [await pair.ask(user=f"u{n}") for n in range(12)]
    assert {each.status_code for each in answers} == {200}
    assert {each.json()["served_by"] for each in answers} == {"old"}
    samples = await pair.samples()
    assert samples.canary.errors == len(pair.canary.requests) > 0
    assert samples.stable.errors == 0


async def test_refusals_are_counted_apart_and_not_repeated(pair: Pair) -> None:
    pair.canary.script = answer("new", 400)
    codes = [(await pair.ask(user=f"u{n}")).status_code for n in range(12)]
    samples = await pair.samples()
    assert samples.canary.refused == codes.count(400) > 0
    assert samples.canary.errors == 0


async def test_latencies_of_streams_are_counted(pair: Pair) -> None:
    pair.stable.script = pair.canary.script = stream
    for n in range(12):
        assert (await pair.ask(user=f"u{n}", stream=True)).status_code == 200
    samples = await pair.samples()
    for each in (samples.canary, samples.stable):
        assert sum(each.ttft.values()) == sum(each.itl.values()) == each.answers > 0


async def test_a_client_that_leaves_before_anything_came_counts(
    pair: Pair, eventually: Any
) -> None:
    async def hang(exchange: Any) -> None:
        await exchange.client_left()

    pair.canary.script = hang
    split = pair.router.server.fleet.models["m"].split
    for n in range(6):
        try:
            async with asyncio.timeout(0.2):
                await pair.ask(user=f"u{n}")
        except TimeoutError:
            pass
    hung = len(pair.canary.requests)
    assert hung > 0
    await eventually(lambda: split.samples().canary.errors == hung)


async def test_without_its_split_a_canary_gets_nothing(pair: Pair, eventually: Any) -> None:
    await pair.split(None, eventually)
    served = {(await pair.ask(user=f"u{n}")).json()["served_by"] for n in range(12)}
    assert served == {"old"}
    found = await pair.client.get(f"{pair.router.admin_url}/canaries")
    assert found.json() == {"models": {}}


async def test_the_metrics_tell_of_both_revisions(pair: Pair) -> None:
    for n in range(8):
        await pair.ask(user=f"u{n}")
    counted = [
        await pair.router.metric("canary_samples", model="m", revision=each, outcome="ok")
        for each in ("canary", "stable")
    ]
    assert sum(counted) == 8
    assert await pair.router.metric("canary_weight", model="m") == 0.5
