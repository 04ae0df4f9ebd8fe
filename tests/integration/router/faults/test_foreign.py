"""Engines that the router takes for vLLM's: it hears of their blocks, and makes the rest itself."""

import asyncio
import random

import httpx
import pytest

from kvasir_router.fleet.replica import Health
from kvasir_router.index.hit_check import HitSource
from kvasir_router.options.router_settings import Probing
from kvasir_router.options.tokenizing_settings import TokenizingSettings

WORDS = ("engine", "router", "cache", "of", "a", "prompt", "block", "and", "key", "value", "list")


def text(seed: int) -> str:
    """Some 3 KB, so that a choice waits for its tokens; the context is 2,048 of them."""
    return " ".join(random.Random(seed).choices(WORDS, k=600))


@pytest.mark.slow
async def test_the_exact_index_knows_what_others_sent_there(
    start_engines, start_router, eventually
) -> None:
    engines = await start_engines(2, secret="")
    entries = [{**engine.entry, "engine": "vllm", "grpc_port": None} for engine in engines]
    router = await start_router(
        [{"name": "sim", "replicas": entries, "tokenizer": "builtin://kvasir-tiny"}],
        wait=False,
        tokenizing=TokenizingSettings(deadline=30.0),
        # One that stands still for a second, on a busy machine, is not to be left here
        probing=Probing(0.2, 0.02, timeout=60.0),
    )
    replicas = [replica for _, replica in router.server.fleet.replicas()]
    await eventually(lambda: all(r.health is Health.READY for r in replicas), 120)
    index = router.server.fleet.models["sim"].policy.index
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        # vLLM answers /health when its model is loaded; these do at once, and tell by /ready.
        async with asyncio.timeout(120):
            for url in (engine.entry["url"] for engine in engines):
                while (await client.get(f"{url}/ready")).is_error:  # noqa: ASYNC110 (a process)
                    await asyncio.sleep(0.05)

        async def chat(url: str, system: str, question: str) -> tuple[int, int]:
            """Prompt tokens, and those of them that were in the cache."""
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ]
            body = {"model": "sim", "messages": messages, "max_tokens": 2, "ignore_eos": True}
            response = await client.post(f"{url}/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            usage = response.json()["usage"]
            return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

        tokenizing = router.server.gateway.tokenizing
        async with asyncio.timeout(60):
            while not tokenizing.outcomes["sim", "made"]:
                await chat(router.url, text(100 + tokenizing.outcomes.total()), "ready?")
        systems = [text(seed) for seed in range(6)]
        for at, system in enumerate(systems):
            known = index.residency.blocks
            await chat(engines[at % 2].entry["url"], system, "from somewhere else")
            await eventually(lambda known=known: index.residency.blocks > known)
        for at, system in enumerate(systems):
            served = replicas[at % 2].served
            prompt, cached = await chat(router.url, system, "from the router")
            assert replicas[at % 2].served == served + 1
            assert cached > 0.8 * prompt
    exact = [
        count for (_, source), count in index.check.confirmed.items() if source is HitSource.EXACT
    ]
    assert sum(exact) > 0
