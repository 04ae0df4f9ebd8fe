"""Routers that tell signals, and the metrics API in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from kvasir.cli.local.ports import free_ports
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_operator.settings import OperatorSettings


class Routers:
    """The admin ports of two routers, on 127.0.0.1 and 127.0.0.2, and the pods that they are."""

    hosts = ("127.0.0.1", "127.0.0.2")

    def __init__(self) -> None:
        self.reports: dict[str, list[dict[str, Any]]] = {}
        """Reports by model, one of each router."""
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.running: tuple[str, ...] = self.hosts
        self.port = 0

    def pods(self) -> list[dict[str, Any]]:
        return [
            {"metadata": {"name": f"router-{host}"}, "status": {"podIP": host}}
            for host in self.running
        ]

    async def answer(self, request: web.Request) -> web.Response:
        host = request.url.host or ""
        model = request.match_info["model"]
        self.asked.append(model)
        if host in self.broken:
            return web.Response(status=500)
        if model not in self.reports:
            return web.json_response({"error": {}}, status=404)
        return web.json_response(self.reports[model][self.hosts.index(host)])


def deployment(name: str, namespace: str = "ns", **metadata: Any) -> dict[str, Any]:
    """An LLMDeployment that is accepted; its model is called NAME-model."""
    return {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"model": {"uri": "builtin://kvasir-tiny", "name": f"{name}-model"}},
        "status": {"conditions": [{"type": "Accepted", "status": "True"}]},
    }


@pytest.fixture(name="deployment")
def deployment_fixture() -> Any:
    return deployment


@pytest.fixture
async def routers() -> AsyncIterator[Routers]:
    state = Routers()
    app = web.Application()
    app.router.add_get("/scaling/{model:.*}", state.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    # 127.0.0.2 has to have the port as well: none that the kernel gives to connections.
    [state.port] = free_ports(1)
    for host in state.hosts:
        await web.TCPSite(runner, host, state.port).start()
    yield state
    await runner.cleanup()


@pytest.fixture
def settings(routers: Routers) -> OperatorSettings:
    return OperatorSettings(
        namespace="kvasir", router_admin_port=routers.port, fleet_secret=FleetSecretFile("s3cret")
    )
