"""LoRA adapters from the spec to a client: a real API server, the operator as a process, simulated
engines, and a router that reads the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.cli.local.ports import free_ports
from kvasir.kube.objects import container_status
from kvasir.resource import labels
from kvasir_operator.spec_facts import held_by_pod

DEADLINE = 60.0


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """processes(name, *words): `kvasir` with these words, until the test ends."""
    made: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str, **environment: str) -> None:
        with (tmp_path / f"{name}.log").open("wb") as log:
            made.append(
                subprocess.Popen(
                    [sys.executable, "-m", "kvasir", *words],
                    env={**os.environ, **environment},
                    stdout=log,
                    stderr=log,
                )
            )

    yield start
    for each in made:
        each.send_signal(signal.SIGTERM)
    for each in made:
        each.wait(DEADLINE)
    for log in tmp_path.glob("*.log"):
        print(log.name, log.read_text()[-4000:])


@pytest.fixture
async def clients(site: Any, plane: Any, processes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router for the site's namespace."""
    port, admin = free_ports(2)
    processes(
        "router",
        *(
            "router",
            "--discovery",
            "kubernetes",
            "--watch-namespace",
            site.namespace,
            "--class-name",
            site.namespace,
        ),
        *("--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin)),
        KUBECONFIG=str(plane.kubeconfig),
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield client


async def test_adapters_are_loaded_routed_and_unloaded_without_a_restart(
    site: Any, start: Any, processes: Any, clients: httpx.AsyncClient
) -> None:
    (port,) = free_ports(1)
    engine = {"type": "custom", "image": "own:1", "command": ["own"], "ports": {"http": port}}
    served = ("--served-model-name", "base", "--drain-timeout", "0")
    where = ("--device", "sim", "--host", "127.0.0.1", "--port", str(port))
    processes("engine", "serve", "builtin://kvasir-tiny", *where, *served)

    async def asked(name: str) -> int:
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        try:
            return (await clients.post("/v1/completions", json=body, timeout=30)).status_code
        except httpx.TransportError:
            return 0

    def answers(name: str, status: int) -> Any:
        async def check() -> bool:
            return await asked(name) == status

        return site.eventually(check, f"{status} for {name}")

    async def spec(*names: str) -> None:
        adapters = [{"name": name, "uri": f"file:///adapters/{name}"} for name in names]
        model = {"uri": "file:///m", "name": "base"}
        await site.apply(model=model, engine=engine, adapters=adapters)

    start()
    await spec("sql")
    await site.until("AdaptersLoaded", "True", "Loaded")
    await answers("base", 200)
    await answers("sql", 200)
    await answers("chat", 404)
    (pod,) = await site.engines()
    run = pod["metadata"]["uid"]

    await spec("chat")
    await site.until("AdaptersLoaded", "True", "Loaded")
    await answers("chat", 200)
    await answers("sql", 404)
    assert (await site.get())["status"]["adapters"] == [{"name": "chat", "readyReplicas": 1}]
    (pod,) = await site.engines()
    assert pod["metadata"]["uid"] == run
    assert container_status(pod, labels.ENGINE_CONTAINER)["restartCount"] == 0
    held = held_by_pod(pod)
    assert held is not None
    assert dict(held.held) == {"chat": "/adapters/chat"}
    listed = (await clients.get("/v1/models")).json()["data"]
    assert [(each["id"], each.get("parent")) for each in listed] == [
        ("base", None),
        ("chat", "base"),
    ]
