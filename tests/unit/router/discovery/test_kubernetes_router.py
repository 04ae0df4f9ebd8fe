"""A router that follows a cluster, as its clients and the operator see it."""

import asyncio
import json
from typing import Any

import pytest

from kvasir_router.options.router_settings import Probing, RouterSettings
from kvasir_router.process.client_port import listen
from kvasir_router.process.single_process import RouterServer

LLMDS = "/apis/kvasir.dev/v1alpha1/llmdeployments"
PODS = "/api/v1/pods"
BODY = {"model": "tiny", "messages": []}


@pytest.fixture
async def api(start_api, monkeypatch, tmp_path):
    """Whom KUBECONFIG names."""
    api = await start_api()
    monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "kubeconfig")))
    return api


@pytest.fixture
async def start(api):
    servers = []

    async def start(**options):
        sock, admin_sock = listen("127.0.0.1", 0, ""), listen("127.0.0.1", 0, "")
        probing = Probing(interval=0.2, startup_interval=0.02)
        settings = RouterSettings(
            probing=probing, access_log=False, drain_timeout=0.1, fleet_secret="s" * 32, **options
        )
        server: Any = RouterServer(settings)
        server.url, server.admin = (
            f"http://127.0.0.1:{each.getsockname()[1]}" for each in (sock, admin_sock)
        )
        await server.start(sock, admin_sock)
        servers.append((server, sock, admin_sock))
        return server

    yield start
    for server, *socks in servers:
        await server.stop()
        for sock in socks:
            sock.close()


async def serving(server, client) -> list[str]:
    return json.loads((await client.get(f"{server.admin}/serving")).content)["serving"]


async def until_serving(server, client, ids) -> None:
    async with asyncio.timeout(10):
        while await serving(server, client) != ids:  # noqa: ASYNC110 - it is asked over HTTP
            await asyncio.sleep(0.01)


async def test_ready_from_the_first_list_on(api, start, client, eventually) -> None:
    api.refuse["all"] = 503
    server = await start()
    await eventually(lambda: api.count("list") >= 3)
    for url in (server.url, server.admin):
        assert (await client.get(f"{url}/ready")).status_code == 503
        assert (await client.get(f"{url}/health")).status_code == 200
    api.refuse.clear()
    await eventually(lambda: server.gateway.ready)
    for url in (server.url, server.admin):
        assert (await client.get(f"{url}/ready")).status_code == 200


async def test_a_model_without_replicas_is_waited_for(
    api, start, client, deployment, pod, start_replica, eventually
) -> None:
    api.put(LLMDS, deployment("tiny", router={"holdSeconds": 60}))
    server = await start()
    await eventually(lambda: server.gateway.ready)
    names = (await client.get(f"{server.url}/v1/models")).json()["data"]
    assert [card["id"] for card in names] == ["tiny"]
    task = asyncio.create_task(client.post(f"{server.url}/score", json=BODY))
    model = server.fleet.models["tiny"]
    await eventually(lambda: server.gateway.queue.waiting(model) == 1)
    replica = await start_replica()
    api.put(PODS, pod("p1", port=replica.port))
    assert (await task).status_code == 200
    assert await serving(server, client) == ["uid-p1/0"]
    assert replica.requests[0].header("x-kvasir-fleet-secret") == "s" * 32


async def test_a_pod_that_is_deleted_gets_nothing_more(
    api, start, client, deployment, pod, leaving, start_replica
) -> None:
    api.put(LLMDS, deployment("tiny"))
    replicas = [await start_replica(), await start_replica()]
    for number, replica in enumerate(replicas):
        api.put(PODS, pod(f"p{number}", port=replica.port))
    server = await start()
    await until_serving(server, client, ["uid-p0/0", "uid-p1/0"])
    api.put(PODS, leaving(pod("p0", port=replicas[0].port)))
    await until_serving(server, client, ["uid-p1/0"])
    for _ in range(8):
        assert (await client.post(f"{server.url}/score", json=BODY)).status_code == 200
    assert (len(replicas[0].requests), len(replicas[1].requests)) == (0, 8)


async def test_a_container_that_was_started_again_is_another_replica(
    api, start, client, deployment, pod, start_replica
) -> None:
    api.put(LLMDS, deployment("tiny"))
    replica = await start_replica()
    api.put(PODS, pod("p0", port=replica.port))
    server = await start()
    await until_serving(server, client, ["uid-p0/0"])
    replica.ready = 503
    api.put(PODS, pod("p0", port=replica.port, restarts=1))
    await until_serving(server, client, [])
    replica.ready = 200
    await until_serving(server, client, ["uid-p0/1"])


async def test_without_an_api_server_it_goes_on(
    api, start, client, deployment, pod, start_replica, eventually
) -> None:
    api.put(LLMDS, deployment("tiny"))
    replica = await start_replica()
    api.put(PODS, pod("p0", port=replica.port))
    server = await start()
    await until_serving(server, client, ["uid-p0/0"])
    await api.stop()
    await eventually(lambda: b"kvasir_router_discovery_good 0.0" in server.metrics.text())
    assert (await client.get(f"{server.url}/ready")).status_code == 200
    assert (await client.post(f"{server.url}/score", json=BODY)).status_code == 200
