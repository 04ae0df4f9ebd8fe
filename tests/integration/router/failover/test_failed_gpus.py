"""A client of the router does not see that its engine's GPU has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from kvasir.cli.local.ports import free_ports
from kvasir.engine_values import GPU_FAULT_STATUS

SECRET = "fleet-secret-of-the-tests"
FLAGS = ("--device", "sim", "--speed-profile", "slow", "--served-model-name", "m")
STREAMS = 4
GPU_IS_WATCHED = 'kvasir_gpus_watched{engine="0",model_name="m"} 1.0'
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Sort: 7 3 9 1"}],
    "temperature": 0,
    "max_tokens": 50,
    "extra_body": {"ignore_eos": True},
    "stream_options": {"include_usage": True},
}


async def test_streams_leave_before_their_engine_ends(
    engines: Callable[..., Any],
    start_router: Callable[..., Any],
    openai_client: Callable[..., Any],
    eventually: Callable[..., Any],
    tmp_path: Path,
) -> None:
    faults, ports = tmp_path / "faults", free_ports(2)
    flags = ("--sim-gpu-fault", str(faults), "--gpu-fault-settle", "0")
    [victim] = engines(1, *FLAGS, *flags, "--grpc-port", str(ports[0]))
    [other] = engines(1, *FLAGS, "--grpc-port", str(ports[1]))
    replicas = [
        {"id": f"r{i}", "url": engine.url, "grpc_port": port, "engine": "kvasir"}
        for i, (engine, port) in enumerate(zip((victim, other), ports, strict=True))
    ]
    router = await start_router(
        [{"name": "m", "replicas": replicas}], fleet_secret=SECRET, policy="round_robin"
    )
    client = openai_client(router.url)
    async with httpx.AsyncClient(trust_env=False) as plain:
        metrics = victim.url + "/metrics"
        while GPU_IS_WATCHED not in (await plain.get(metrics)).text:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)
    expected = await client.chat(**CHAT)
    streams = [asyncio.create_task(client.chat(**CHAT)) for _ in range(STREAMS)]
    await eventually(lambda: router.replica("m", "r0").in_flight == STREAMS / 2)
    faults.write_text("xid 79\n")
    # A drain's end, 10 s later, would move them too: by then they have long ended elsewhere
    assert [await stream for stream in streams] == [expected] * STREAMS
    assert await asyncio.to_thread(victim.process.wait, 30) == GPU_FAULT_STATUS
    assert await router.metric("retries_total", reason="departing") == STREAMS / 2
    assert "ended for a fault of its GPU: GPU sim-0: Xid 79" in victim.log.read_text()
