"""Two workers in front of real engines: what one of them sent, both know to be cached."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

PATH = "/v1/completions"
TEXT = "".join(f"sentence number {number} of the common beginning. " for number in range(50))


async def cached_tokens(url: str, end: str) -> tuple[int, int]:
    """Of the prompt, in the engine's cache, and in all; over a connection of its own."""
    body = {"model": "sim", "prompt": TEXT + end, "max_tokens": 4, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        response = await http.post(url + PATH, json=body)
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0), usage[
        "prompt_tokens"
    ]


async def metrics(http: httpx.AsyncClient, url: str, name: str) -> dict[str, float]:
    """By the labels as they are written."""
    text = (await http.get(f"{url}/metrics")).text
    found = [line for line in text.splitlines() if line.startswith(f"kvasir_router_{name}{{")]
    return {line.split("{")[1].split("}")[0]: float(line.rsplit(" ", 1)[1]) for line in found}


async def both_have_the_news(url: str) -> None:
    """Return once each worker has what the index process knew: its answer about metrics comes to a
    worker after all news before it. Connections are spread over both workers."""
    for _ in range(24):
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            await metrics(http, url, "requests_total")


def child(parent: int, name: str) -> int:
    """The process id of one of a router's processes."""
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if Path(f"/proc/{pid}/comm").read_text().strip() == f"router-{name}":
            return int(pid)
    raise AssertionError(f"there is no {name}")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while True:
            with suppress(httpx.TransportError):
                if await condition():
                    return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_exact_hits_in_both_workers(
    start_engines, start_process, write_config, tmp_path, monkeypatch, client
) -> None:
    monkeypatch.setenv("KVASIR_FLEET_SECRET", "fleet-secret")
    engines = await start_engines(2)
    config = tmp_path / "fleet.yaml"
    write_config(config, [{"name": "sim", "replicas": [engine.entry for engine in engines]}])
    router = await start_process(config, "--workers", "2", "--no-access-log", wait=False)

    async def all_are_heard() -> bool:
        [model] = (await client.get(f"{router.admin_url}/debug/fleet")).json()["models"]
        return all(r["health"] == "ready" and r["load"] for r in model["replicas"])

    async def nobody_is_late() -> bool:
        [model] = (await client.get(f"{router.admin_url}/debug/fleet")).json()["models"]
        loads = [r["load"] for r in model["replicas"] if r["health"] == "ready"]
        return len(loads) == 2 and all(load and load["age_seconds"] < 0.3 for load in loads)

    async def blocks_are_known() -> bool:
        blocks = await metrics(client, router.admin_url, "index_blocks")
        return blocks['index="exact",model="sim"'] > 0

    async def texts_are_known() -> bool:
        blocks = await metrics(client, router.admin_url, "index_blocks")
        return min(blocks[f'index="{index}",model="sim"'] for index in ("exact", "texts")) > 0

    async def silences() -> float:
        events = await metrics(client, router.admin_url, "replica_feed_events_total")
        silent = (count for labels, count in events.items() if "load_stream_silent" in labels)
        return sum(silent)

    async def all_are_hits(words: str) -> None:
        """Sixteen, as connections are spread over both workers. One for which an engine was left
        because it stood still, on a busy machine, says nothing of what workers know."""
        for number in range(16):
            cached, was_left = 0, True
            while was_left:
                before = await silences()
                await until(nobody_is_late)
                cached, _ = await cached_tokens(router.url, f"{words} {number}")
                was_left = await silences() > before
            assert cached > 0.9 * length

    await until(all_are_heard)
    cached, length = await cached_tokens(router.url, "first")
    assert cached == 0
    await until(blocks_are_known)
    await until(texts_are_known)
    await both_have_the_news(router.url)
    await all_are_hits("further")
    os.kill(child(router.process.pid, "index"), signal.SIGKILL)
    await until(all_are_heard)
    await until(texts_are_known)
    for name in ("worker0", "worker1"):  # their successors have it from the new index process
        os.kill(child(router.process.pid, name), signal.SIGKILL)
    await all_are_hits("once more")
    predicted = await metrics(client, router.admin_url, "predicted_hit_tokens_total")
    confirmed = await metrics(client, router.admin_url, "confirmed_hit_tokens_total")
    exact = [labels for labels in predicted if 'source="exact"' in labels]
    assert sum(predicted[labels] for labels in exact) > 20 * 0.9 * length
    assert sum(confirmed.values()) > 0.95 * sum(predicted.values())
