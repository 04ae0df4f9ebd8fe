"""A client of the router does not see that one process of its engine's several has ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "fleet-secret-of-the-tests"
FLAGS = ("--device", "sim", "--speed-profile", "slow", "--served-model-name", "m")
STREAMS = 8
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Sort: 7 3 9 1"}],
    "temperature": 0,
    "max_tokens": 40,
    "extra_body": {"ignore_eos": True},
    "stream_options": {"include_usage": True},
}


def further_ranks() -> dict[int, int]:
    """The parents, which are cores, of all processes that are ranks beside one."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                command = (path / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if "kvasir_engine.parallel.worker" in command:
                found[int(path.name)] = int(command[-2])
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_streams_of_an_engine_that_lost_a_rank_go_on(
    engines: Callable[..., Any],
    start_router: Callable[..., Any],
    openai_client: Callable[..., Any],
) -> None:
    pair = engines(2, *FLAGS, "--tensor-parallel-size", "2")
    replicas = [
        {"id": f"r{i}", "url": engine.url, "engine": "kvasir"} for i, engine in enumerate(pair)
    ]
    router = await start_router(
        [{"name": "m", "replicas": replicas}], fleet_secret=SECRET, policy="round_robin"
    )
    client = openai_client(router.url)
    expected = await client.chat(**CHAT)
    victim = pair[0]
    (rank,) = (r for r, core in further_ranks().items() if parent(core) == victim.process.pid)
    streams = [asyncio.create_task(client.chat(**CHAT)) for _ in range(STREAMS)]
    await asyncio.sleep(1)
    os.kill(rank, signal.SIGKILL)
    assert await asyncio.to_thread(victim.process.wait, 15) == 1
    assert [await stream for stream in streams] == [expected] * STREAMS
    # Round robin: half of them ran there.
    assert await router.metric("stream_migrations_total", outcome="moved") == STREAMS / 2
    assert "tensor-parallel rank 1 ended (signal 9)" in victim.log.read_text()
