"""Ends of engines for faults of their GPUs: which are told, once, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.engine_values import GPU_FAULT_STATUS
from kvasir.kube import ApiError
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.departures.gpu_faults import GpuFaultEvents, gpu_fault_of
from kvasir_operator.objects import format_time

LOG = (
    "kvasir: GPU g: Xid 79, it has fallen off the bus. Requests have 10 s\n"
    "kvasir: ended for a fault of its GPU: GPU g: Xid 79, it has fallen off the bus.\n"
)


def ended(
    pod: dict[str, Any],
    status: int = GPU_FAULT_STATUS,
    *,
    ago: float = 5.0,
    where: str = "lastState",
    message: str = LOG,
) -> dict[str, Any]:
    """Return the pod with a container that has ended so many seconds ago."""
    at = format_time(datetime.now(UTC) - timedelta(seconds=ago))
    [container] = pod["status"]["containerStatuses"]
    state = {"exitCode": status, "finishedAt": at, "message": message}
    container[where] = {"terminated": state}
    return pod


def found(pod: dict[str, Any]) -> Any:
    return gpu_fault_of(pod, datetime.now(UTC))


@pytest.mark.parametrize("where", ["state", "lastState"])
def test_pod_node_and_reason_are_named(make: Any, where: str) -> None:
    end = found(ended(make.pod("a", up=True), where=where))
    assert end.key == Key("ns", "m")
    assert end.message == (
        "Pod a on n1 ended for a fault of its GPU: GPU g: Xid 79, it has fallen off the bus. It"
        " starts again on the same GPU; if that fails, drain the node or delete the pod."
    )


def test_without_a_known_reason_the_rest_is_told(make: Any) -> None:
    end = found(ended(make.pod("a", up=True), message="Traceback"))
    assert end.message.startswith("Pod a on n1 ended for a fault of its GPU. It starts")


def test_a_long_reason_is_cut(make: Any) -> None:
    end = found(ended(make.pod("a", up=True), message=LOG.strip() + "x" * 5000))
    assert len(end.reason) == 300


@pytest.mark.parametrize("status", [0, 1, 2, 137])
def test_other_ends_are_none_of_it(make: Any, status: int) -> None:
    assert found(ended(make.pod("a", up=True), status)) is None


def test_what_is_long_ago_is_not_told(make: Any) -> None:
    assert found(ended(make.pod("a", up=True), ago=29 * 60)) is not None
    assert found(ended(make.pod("a", up=True), ago=31 * 60)) is None


def test_the_status_of_another_type_of_engine_means_nothing(make: Any) -> None:
    pod = ended(make.pod("a", up=True))
    pod["metadata"]["labels"][labels.ENGINE_TYPE] = "vllm"
    assert found(pod) is None
    assert found(make.pod("b", up=True)) is None


class Server:
    """Pods as a watch shows them, and events, whose names are taken once."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = list(pods)
        self.events: dict[str, str] = {}
        self.asked = 0
        self.refusals: list[ApiError] = []

    async def create(self, kind: Any, body: Any, manager: str) -> None:
        self.asked += 1
        if self.refusals:
            raise self.refusals.pop(0)
        name = body["metadata"]["name"]
        if name in self.events:
            raise ApiError(409, "AlreadyExists", name)
        self.events[name] = f"{body['type']} {body['reason']}"


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[tuple[GpuFaultEvents, Metrics]]:
    resource = {"metadata": {"name": "m", "namespace": "ns", "uid": "u1"}}
    view: Any = SimpleNamespace(engine_pods=lambda: server.pods, resource=lambda key: resource)
    metrics, cluster = Metrics(), server
    events = GpuFaultEvents(cluster, view, metrics)  # type: ignore[arg-type]
    task = asyncio.create_task(events.run())
    yield events, metrics
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(events: GpuFaultEvents, check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not check():
            events.wake()
            await asyncio.sleep(0.01)


def count(metrics: Metrics) -> float:
    value = metrics.registry.get_sample_value(
        "kvasir_operator_gpu_faults_total", {"namespace": "ns", "name": "m"}
    )
    return value or 0.0


async def test_each_end_is_told_once_also_by_the_next_operator(make: Any) -> None:
    server = Server(ended(make.pod("a", up=True)), make.pod("b", up=True))
    async with running(server) as (events, metrics):
        await until(events, lambda: count(metrics) == 1)
        assert list(server.events.values()) == ["Warning GpuFault"]
        server.pods = [ended(make.pod("a", up=True), ago=1), server.pods[1]]
        await until(events, lambda: count(metrics) == 2)
        assert len(server.events) == 2
        assert server.asked == 2
    async with running(server) as (events, metrics):
        await until(events, lambda: server.asked == 3)
        server.pods = [ended(make.pod("c", up=True))]
        await until(events, lambda: count(metrics) == 1)
        assert len(server.events) == 3, "of a alone, there was one already"


async def test_one_that_cannot_be_told_is_told_later(make: Any) -> None:
    server = Server(ended(make.pod("a", up=True)), ended(make.pod("b", up=True)))
    server.refusals = [ApiError(500, "InternalError", "no")]
    async with running(server) as (events, metrics):
        await until(events, lambda: count(metrics) == 2)
        assert server.asked == 3


async def test_the_count_goes_with_its_deployment(make: Any) -> None:
    server = Server(ended(make.pod("a", up=True)))
    async with running(server) as (events, metrics):
        await until(events, lambda: count(metrics) == 1)
        metrics.gone(Key("ns", "m"))
        assert b"gpu_faults_total{" not in metrics.text()
