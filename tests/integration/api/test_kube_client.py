"""Requests to a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from kvasir.kube import ApiError, Cluster, ClusterAccess, Kind, load_access

MAPS = Kind("v1", "configmaps")


def configmap(namespace: str, name: str = "m", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"test": "client"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
def access(control_plane: Any) -> ClusterAccess:
    return load_access(environ={"KUBECONFIG": str(control_plane.kubeconfig)})


@pytest.fixture
async def cluster(access: ClusterAccess) -> AsyncIterator[Cluster]:
    async with Cluster(access, timeout=60) as found:
        yield found


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Kind("v1", "pods").path(), "/api/v1/pods"),
        (Kind("v1", "pods").path("n", "p", "status"), "/api/v1/namespaces/n/pods/p/status"),
        (Kind("apps/v1", "deployments").path("n"), "/apis/apps/v1/namespaces/n/deployments"),
        (Kind("v1", "nodes", namespaced=False).path("n", "x"), "/api/v1/nodes/x"),
    ],
)
def test_paths(kind: str, path: str) -> None:
    assert kind == path


async def test_the_life_of_an_object(control_plane: Any, cluster: Cluster) -> None:
    namespace = control_plane.namespace("client")
    made = await cluster.apply(MAPS, configmap(namespace, a="1", b="2"), "one")
    assert (await cluster.get(MAPS, namespace, "m") or {})["data"] == {"a": "1", "b": "2"}
    # What is left out is taken away; what others hold is taken over
    await cluster.apply(MAPS, configmap(namespace, a="3"), "two")
    after = await cluster.apply(MAPS, configmap(namespace, a="4"), "one")
    assert after["data"] == {"a": "4"}
    with pytest.raises(ApiError) as conflict:
        await cluster.replace(MAPS, {**made, "data": {}}, "one")
    assert conflict.value.status == 409
    assert conflict.value.is_transient
    assert [
        it["metadata"]["name"] for it in await cluster.list(MAPS, namespace, "test=client")
    ] == ["m"]
    await cluster.delete(MAPS, namespace, "m", "another-uid")
    assert await cluster.get(MAPS, namespace, "m") is not None
    await cluster.delete(MAPS, namespace, "m", made["metadata"]["uid"])
    assert await cluster.get(MAPS, namespace, "m") is None
    await cluster.delete(MAPS, namespace, "m")


async def test_refusals_have_the_servers_words(control_plane: Any, cluster: Cluster) -> None:
    with pytest.raises(ApiError) as refusal:
        await cluster.create(MAPS, configmap("default", "No_Name"), "one")
    assert refusal.value.status == 422
    assert not refusal.value.is_transient
    assert "No_Name" in str(refusal.value)


async def test_kinds_that_are_and_are_not_served(cluster: Cluster) -> None:
    assert await cluster.serves("apps/v1", "deployments")
    assert not await cluster.serves("apps/v1", "podmonitors")
    assert not await cluster.serves("monitoring.coreos.com/v1", "podmonitors")


async def test_a_server_that_is_not_there(access: ClusterAccess, free_port: int) -> None:
    gone = replace(access, server=f"https://127.0.0.1:{free_port}")
    async with Cluster(gone) as cluster:
        with pytest.raises(ApiError, match="the API server is not reached") as error:
            await cluster.get(MAPS, "default", "m")
    assert error.value.status == 0
    assert error.value.is_transient
