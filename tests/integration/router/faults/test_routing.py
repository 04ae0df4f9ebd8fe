"""Where requests go in a fleet of simulated engines, judged by what these found in their caches."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.replica import Health
from kvasir_router.index.hit_check import HitSource
from kvasir_router.options.router_settings import Probing
from kvasir_router.policy.kv_aware import KvAware

HEADERS = {"x-kvasir-fleet-secret": "fleet-secret"}


def text(seed: int, words: int) -> str:
    return " ".join(str((seed * 7919 + at * 104729) % 9973) for at in range(words))


_BODIES: dict[str, Callable[[list[Any], int], dict[str, Any]]] = {
    "/v1/chat/completions": lambda messages, most: {
        "messages": messages,
        "max_tokens": most,
        "ignore_eos": True,
    },
    "/v1/responses": lambda messages, most: {"input": messages, "max_output_tokens": most},
    "/v1/messages": lambda messages, most: {
        "system": messages[0]["content"],
        "messages": messages[1:],
        "max_tokens": most,
    },
}
"""Bodies of a conversation that begins with a system message, in each protocol."""


def _tokens(usage: dict[str, Any]) -> tuple[int, int]:
    """Prompt tokens, and those of them that were cached."""
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if "input_tokens_details" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


class RunningFleet:
    """A router over engines, whose policy can be looked into."""

    def __init__(self, router: Any, client: httpx.AsyncClient) -> None:
        self.router = router
        self.client = client
        self.path = "/v1/chat/completions"
        self.model = router.server.fleet.models["sim"]
        self.replicas = list(self.model.replicas.values())
        assert isinstance(self.model.policy, KvAware), "the default"
        self.index = self.model.policy.index

    async def chat(self, *contents: str, max_tokens: int = 2) -> tuple[int, int]:
        """Prompt tokens, and those of them that the engine found in its cache."""
        roles = ("system", *(("user", "assistant") * len(contents)))
        messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
        body = _BODIES[self.path](messages, max_tokens)
        response = await self.client.post(
            self.router.url + self.path, json={"model": "sim", **body}, headers=HEADERS
        )
        assert response.status_code == 200, response.text
        return _tokens(response.json()["usage"])

    async def learn(self, system: str) -> None:
        """Ask until an engine has reported which KV blocks the text stands for: it reports to
        those who listen by then."""
        known = len(self.index.texts)
        async with asyncio.timeout(30):
            while len(self.index.texts) == known:
                await self.chat(system, "first")
                await asyncio.sleep(0.1)


@pytest.fixture
async def start_fleet(
    start_engines, start_router, eventually, monkeypatch
) -> Callable[..., Awaitable[RunningFleet]]:
    """Of engines that are not left when they stand still for a second, on a busy machine."""
    for module in ("feeds.feeds", "fleet.replica_load"):
        monkeypatch.setattr(f"kvasir_router.{module}.STALE_SECONDS", 60.0)
    clients = []

    async def start(count: int, *engine_options: str) -> RunningFleet:
        engines = await start_engines(count, options=engine_options)
        router = await start_router(
            [{"name": "sim", "replicas": [engine.entry for engine in engines]}],
            wait=False,
            fleet_secret="fleet-secret",
            probing=Probing(0.2, 0.02, timeout=60.0),
        )
        clients.append(httpx.AsyncClient(timeout=60, trust_env=False))
        fleet = RunningFleet(router, clients[-1])
        await eventually(lambda: all(r.health is Health.READY for r in fleet.replicas), 120)
        await eventually(lambda: all(r.load.report is not None for r in fleet.replicas))
        return fleet

    yield start
    for client in clients:
        await client.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("path", _BODIES)
async def test_prompts_and_conversations_go_where_their_kv_is(start_fleet, path: str) -> None:
    fleet = await start_fleet(3)
    fleet.path = path
    systems = [text(seed, 150) for seed in range(6)]
    for system in systems:
        await fleet.learn(system)
    served = {replica.id: replica.served for replica in fleet.replicas}
    assert all(served.values()), "cold prompts are spread"
    for number in range(4):
        for system in systems:
            prompt, cached = await fleet.chat(system, f"question {number}")
            assert cached > 0.8 * prompt
    check = fleet.index.check
    assert sum(check.predicted.values()) > 0
    assert sum(check.confirmed.values()) > 0.8 * sum(check.predicted.values())
    assert {source for _, source in check.predicted} & {HitSource.EXACT, HitSource.SPECULATIVE}
    # A conversation: every turn finds all of the turns before it
    turns = [text(77, 150)]
    before = 0
    for turn in range(5):
        turns.append(f"turn {turn} {text(turn, 15)}")
        prompt, cached = await fleet.chat(*turns)
        assert cached >= before - 32
        before = prompt
        turns.append(f"answer {turn} {text(turn + 50, 10)}")


@pytest.mark.slow
async def test_load_beats_affinity_when_the_holder_is_overloaded(start_fleet, eventually) -> None:
    # So slow that prompts come faster than they are computed, on a machine that is busy, too.
    fleet = await start_fleet(2, "--speed-profile", "slow")
    system = text(1, 150)
    await fleet.chat(system, "first")
    [holder] = [replica for replica in fleet.replicas if replica.served]
    [other] = [replica for replica in fleet.replicas if not replica.served]
    _, cached = await fleet.chat(system, "second")
    assert cached > 0
    assert (holder.served, other.served) == (2, 0)
    # Somebody else, whom the router does not see, gives the holder much to do
    url = f"http://{holder.pool.authority}/v1/completions"
    prompts = [text(100 + i, 300) for i in range(100)]
    body = {"model": "sim", "prompt": prompts, "max_tokens": 64, "ignore_eos": True}
    async with asyncio.TaskGroup() as group:
        flood = [group.create_task(fleet.client.post(url, json=body)) for _ in range(4)]
        await eventually(lambda: holder.load.prefill_tokens > 20_000, 30)
        async with asyncio.timeout(30):
            while not other.served:
                await fleet.chat(system, "third")
        for task in flood:
            task.cancel()


@pytest.mark.slow
async def test_another_policy_at_run_time(start_fleet) -> None:
    fleet = await start_fleet(2)
    fleet.router.server.fleet.set_policy(fleet.model, PolicySpec("round_robin"))
    for number in range(4):
        await fleet.chat(text(1, 150), f"question {number}")
    assert [replica.served for replica in fleet.replicas] == [2, 2]
    fleet.router.server.fleet.set_policy(fleet.model, PolicySpec("kv_aware"))
    for number in range(4):
        await fleet.chat(text(2, 150), f"question {number}")
    assert sorted(replica.served for replica in fleet.replicas) == [2, 6]
