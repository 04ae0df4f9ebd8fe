"""Lease: taken, kept, lost and given back, on a real API server and on one that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from harness.streams import serving
from kvasir.kube.client import Cluster
from kvasir.kube.config import ClusterAccess, load_access
from kvasir_operator.kinds import LEASES
from kvasir_operator.lease import Leadership, LeaseLostError, clock
from kvasir_operator.settings import OperatorSettings

SECONDS = 9.0
"""A third of it is enough for one renewal on a busy machine."""


@pytest.fixture
async def cluster(control_plane: Any) -> AsyncIterator[Cluster]:
    access = await load_access(environ={"KUBECONFIG": str(control_plane.kubeconfig)})
    async with Cluster(access, timeout=60) as found:
        yield found


@pytest.fixture
def namespace(control_plane: Any) -> str:
    return str(control_plane.namespace("lease"))


def candidate(cluster: Cluster, namespace: str, seconds: float = SECONDS) -> Leadership:
    settings = OperatorSettings(namespace=namespace, lease_name="it", lease_seconds=seconds)
    return Leadership(cluster, settings)


async def test_only_the_holder_may_write_and_not_for_longer_than_it_is_sure(
    cluster: Cluster, namespace: str
) -> None:
    first, second = candidate(cluster, namespace), candidate(cluster, namespace)
    assert not first.may_write()
    begun = clock()
    await first.acquire()
    assert first.may_write()
    waiting = asyncio.create_task(second.acquire())
    while first.may_write():
        assert not second.may_write()
        await asyncio.sleep(0.01)
    assert clock() - begun >= SECONDS * 2 / 3
    assert not second.may_write()
    await waiting
    assert second.may_write()
    assert clock() - begun > SECONDS
    with pytest.raises(LeaseLostError, match="could not be renewed in time"):
        await first.hold()
    await first.release()
    lease = await cluster.get(LEASES, namespace, "it") or {}
    assert lease["spec"]["holderIdentity"] == second.identity
    await second.release()
    lease = await cluster.get(LEASES, namespace, "it") or {}
    assert lease["spec"]["holderIdentity"] == ""


async def test_a_lease_that_others_write_to_is_not_lost_while_they_leave_the_holder(
    cluster: Cluster, namespace: str
) -> None:
    one = candidate(cluster, namespace)
    await one.acquire()
    holding = asyncio.create_task(one.hold())

    async def annotate() -> None:
        for number in range(60):
            body = {"metadata": {"annotations": {"n": str(number)}}}
            await cluster.merge(LEASES, namespace, "it", body)

    await annotate()
    assert not holding.done()
    taken = {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}}
    await cluster.merge(LEASES, namespace, "it", taken)
    with pytest.raises(LeaseLostError, match="another operator has taken the Lease"):
        await holding


async def test_an_api_server_that_hangs_ends_the_leadership_in_time(
    cluster: Cluster, namespace: str
) -> None:
    """Though one request may take longer than the whole Lease."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def load(configuration: Configuration, rejected: bool) -> None:
        """There are no credentials."""

    one = candidate(cluster, namespace)
    begun = clock()
    await one.acquire()
    async with serving(hang) as port:
        access = ClusterAccess(Configuration(host=f"http://127.0.0.1:{port}"), load, "default")
        async with Cluster(access, timeout=600) as hanging:
            one._cluster = hanging
            with pytest.raises(LeaseLostError, match="could not be renewed in time"):
                await one.hold()
            assert clock() - begun >= SECONDS * 2 / 3
            assert not one.may_write()
            await one.release()
