"""The writer of the condition, against an API server that fails and pods that change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.kube import ApiError
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.departures.departures import Departures
from kvasir_operator.departures.node_signals import kept_node
from kvasir_operator.departures.signs import NodeSignals


class Server:
    """Pods and one node, as watches show them; writes succeed once `refusals` are used up."""

    def __init__(self, make: Any, *names: str) -> None:
        self.pods = {name: make.pod(name, up=True, routed=True) for name in names}
        for pod in self.pods.values():
            pod["metadata"]["resourceVersion"] = "1"
        self.cordoned = True
        self.refusals: dict[str, list[ApiError]] = {}
        self.told: list[str] = []
        self.news = asyncio.Event()
        """Set at each request, and whenever the writer has looked at all pods."""

    def node(self, name: str) -> dict[str, Any]:
        spec = {"unschedulable": self.cordoned}
        return kept_node({"metadata": {"name": name}, "spec": spec})

    async def merge_status(
        self, kind: Any, namespace: str, name: str, status: Any, metadata: Any
    ) -> Any:
        self.news.set()
        refusals = self.refusals.get(name)
        if refusals:
            raise refusals.pop(0)
        pod = self.pods[name]
        assert metadata["resourceVersion"] == pod["metadata"]["resourceVersion"]
        kept = [it for it in pod["status"]["conditions"] if it["type"] != labels.LEAVING]
        pod["status"]["conditions"] = [*kept, *status["conditions"]]
        return pod

    async def create(self, kind: Any, body: Any, manager: str) -> None:
        self.news.set()
        self.told.append(f"{body['type']} {body['reason']}: {body['message']}")

    def leaving(self) -> set[str]:
        conditions = ((name, it) for name, pod in self.pods.items() for it in _leaving(pod))
        return {name for name, it in conditions if it["status"] == "True"}


def _leaving(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [it for it in pod["status"]["conditions"] if it["type"] == labels.LEAVING]


class Looks(Metrics):
    """The metrics, which are written at each look."""

    def __init__(self, news: asyncio.Event) -> None:
        super().__init__()
        self._news = news

    def leaving_pods(self, by_reason: Mapping[str, int]) -> None:
        super().leaving_pods(by_reason)
        self._news.set()


@pytest.fixture
def running() -> Callable[[Server], Any]:
    @asynccontextmanager
    async def run(server: Server) -> AsyncIterator[tuple[Departures, Metrics]]:
        resource = {"metadata": {"name": "m", "namespace": "ns", "uid": "u1"}}
        view: Any = SimpleNamespace(
            engine_pods=lambda: list(server.pods.values()),
            node=server.node,
            find=lambda kind, owner, name: server.pods.get(name),
            resource=lambda key: resource,
            wrote=lambda *args: None,
        )
        metrics, cluster = Looks(server.news), server
        departures = Departures(cluster, view, NodeSignals(), metrics)  # type: ignore[arg-type]
        task = asyncio.create_task(departures.run())
        try:
            yield departures, metrics
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return run


async def until(departures: Departures, server: Server, check: Callable[[], bool]) -> None:
    """Wake the writer after each look and request until that is so."""
    async with asyncio.timeout(30):
        while not check():
            server.news.clear()
            departures.wake()
            await server.news.wait()


async def test_a_cordon_is_written_told_and_taken_back(make: Any, running: Any) -> None:
    server = Server(make, "a")
    async with running(server) as (departures, metrics):
        await until(departures, server, lambda: len(server.told) == 1)
        assert server.leaving() == {"a"}
        assert server.told == ["Warning PodLeaves: Pod a on n1: Node n1 is cordoned."]
        metric = b'kvasir_operator_leaving_pods{reason="NodeLeaves"} '
        await until(departures, server, lambda: metric + b"1.0" in metrics.text())
        server.cordoned = False
        await until(departures, server, lambda: len(server.told) == 2)
        assert server.leaving() == set()
        assert server.told[1].startswith("Normal PodStays: Pod a on n1")
        await until(departures, server, lambda: metric + b"0.0" in metrics.text())


async def test_one_that_cannot_be_written_delays_no_other(make: Any, running: Any) -> None:
    server = Server(make, "a", "b")
    server.refusals["a"] = [ApiError(500, "InternalError", "no")] * 1000
    async with running(server) as (departures, _):
        await until(departures, server, lambda: server.leaving() == {"b"})
        server.refusals.clear()
        await until(departures, server, lambda: server.leaving() == {"a", "b"})


@pytest.mark.parametrize("status", [404, 409])
async def test_a_pod_that_changes_or_goes_meanwhile_is_no_failure(
    make: Any, running: Any, status: int
) -> None:
    server = Server(make, "a")
    server.refusals["a"] = [ApiError(status, "", "")]
    async with running(server) as (departures, _):
        await until(departures, server, lambda: not server.refusals["a"])
        if status == 409:
            await until(departures, server, lambda: server.leaving() == {"a"})
            return
        del server.pods["a"]
        for _ in range(2):
            server.news.clear()
            departures.wake()
            await server.news.wait()
        assert server.told == []
