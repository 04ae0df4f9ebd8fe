"""Several processes of a router that follows a cluster."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from kvasir.cli.local.ports import free_ports

ROOT = Path(__file__).parents[4]
LLMDS = "/apis/kvasir.dev/v1alpha1/llmdeployments"
PODS = "/api/v1/pods"
BODY = {"model": "tiny", "messages": []}


@pytest.fixture
async def start(tmp_path):
    """Start a router for a FakeApi; returns its process and its two URLs."""
    processes = []

    async def start(api):
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
        port, admin = free_ports(2)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvasir_router", "--discovery", "kubernetes"),
            *("--workers", "2", "--port", str(port), "--admin-port", str(admin)),
            *("--drain-timeout", "1"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ
            | {"PYTHONPATH": f"{ROOT}/api:{ROOT}/router", "KUBECONFIG": str(kubeconfig)},
        )
        processes.append(process)
        return process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"

    yield start
    for process in processes:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


def index_of(router: int) -> int:
    """The process that follows the cluster."""
    children = Path(f"/proc/{router}/task/{router}/children").read_text().split()
    [index] = [c for c in children if Path(f"/proc/{c}/comm").read_text() == "router-index\n"]
    return int(index)


async def until(condition, seconds: float = 60) -> None:
    """`condition` is asked over HTTP; while nobody listens it does not hold."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                if await condition():
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_workers_outlive_an_index_process_that_learns_nothing(
    start_api, start, start_replica, client, deployment, pod
) -> None:
    api, replica = await start_api(), await start_replica()
    api.put(LLMDS, deployment("tiny"))
    api.put(PODS, pod("p0", port=replica.port))
    router, url, admin = await start(api)

    async def answers() -> bool:
        return (await client.post(f"{url}/score", json=BODY)).status_code == 200

    async def index_is_ready() -> bool:
        return (await client.get(f"{admin}/ready")).status_code == 200

    async def index_is_there() -> bool:
        return (await client.get(f"{admin}/health")).status_code == 200

    client.headers["Connection"] = "close"
    await until(answers)
    await until(index_is_ready)
    api.refuse["all"] = 503
    for watch in list(api.watches):
        watch.cut()
    os.kill(index_of(router.pid), signal.SIGKILL)
    await until(index_is_there)
    for _ in range(20):
        assert not await index_is_ready()
        assert await answers(), "workers go on with what they know"
        await asyncio.sleep(0.05)
    api.refuse.clear()
    await until(index_is_ready)
    assert await answers()
