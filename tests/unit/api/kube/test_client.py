"""Requests to a real API server."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from harness.pki import Authority
from harness.streams import serving
from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.config import ClusterAccess, load_access

MAPS = Kind("v1", "configmaps")


def configmap(namespace: str, name: str = "m", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"test": "client"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
async def access(control_plane: Any) -> ClusterAccess:
    return await load_access(environ={"KUBECONFIG": str(control_plane.kubeconfig)})


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


def test_a_watch_that_is_cancelled_leaves_no_connection(tmp_path: Path) -> None:
    """Though the server does not say goodbye."""
    authority = Authority(tmp_path)
    authority.create()
    authority.issue("server", "/CN=server", ["IP:127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.path("server.crt"), authority.path("server.key"))
    done = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
            done.wait(60)

    async def load(configuration: Configuration, rejected: bool) -> None:
        """There are no credentials."""

    async def watch_and_leave() -> None:
        port = listening.getsockname()[1]
        configuration = Configuration(host=f"https://127.0.0.1:{port}")
        configuration.ssl_ca_cert = str(authority.certificate)
        async with Cluster(ClusterAccess(configuration, load, "default"), timeout=60) as cluster:
            opened = asyncio.Event()

            async def follow() -> None:
                async with cluster.open("GET", MAPS.path(), {"watch": "true"}) as answer:
                    opened.set()
                    await answer.content.read()

            following = asyncio.create_task(follow())
            await opened.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    with listening, ThreadPoolExecutor(1) as pool, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        serving_once = pool.submit(serve)
        try:
            asyncio.run(watch_and_leave())
            gc.collect()
        finally:
            done.set()
        serving_once.result()
    assert [str(each.message) for each in caught] == []


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
    access.configuration.host = f"https://127.0.0.1:{free_port}"
    async with Cluster(access) as cluster:
        with pytest.raises(ApiError, match="the API server is not reached") as error:
            await cluster.get(MAPS, "default", "m")
    assert error.value.status == 0
    assert error.value.is_transient


@asynccontextmanager
async def server_of(answer: bytes) -> AsyncIterator[tuple[Cluster, list[str]]]:
    """A server that gives `answer` once on each connection and closes it as the next request
    comes, and the methods it was asked with."""
    methods: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for each in (answer, b""):
            head = await reader.readuntil(b"\r\n\r\n")
            methods.append(head.split(b" ")[0].removeprefix(b"{}").decode())
            writer.write(each)

    async def load(configuration: Configuration, rejected: bool) -> None:
        """There are no credentials."""

    async with serving(serve) as port:
        access = ClusterAccess(Configuration(host=f"http://127.0.0.1:{port}"), load, "default")
        async with Cluster(access) as cluster:
            yield cluster, methods


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def test_a_connection_that_was_closed_meanwhile() -> None:
    """As a request is sent on it: the request is sent anew if that may be done twice."""
    async with server_of(EMPTY) as (cluster, methods):
        await cluster.get(MAPS, "n", "m")
        assert await cluster.merge(MAPS, "n", "m", {}) == {}
        with pytest.raises(ApiError, match="the API server is not reached") as error:
            await cluster.create(MAPS, configmap("n"), "one")
    assert error.value.is_transient
    assert methods == ["GET", "PATCH", "PATCH", "POST"]


async def test_the_environments_proxy_is_not_for_the_api_server(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with server_of(EMPTY) as (cluster, _):
        assert await cluster.get(MAPS, "n", "m") == {}


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n[", 200, r"\["),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "no answer"),
        (b"HTTP/1.1 502 X\r\nContent-Length: 3\r\n\r\nbad", 502, "bad"),
        (b"HTTP/1.1 401 X\r\nContent-Length: 2\r\n\r\n[]", 401, r"\[\]"),
        (b"no HTTP at all\r\n\r\n", 0, "not reached"),
    ],
)
async def test_answers_that_are_none(answer: bytes, status: int, words: str) -> None:
    async with server_of(answer) as (cluster, _):
        with pytest.raises(ApiError, match=words) as error:
            await cluster.serves("apps/v1", "deployments")
    assert error.value.status == status


@pytest.mark.parametrize("still_allowed", [0, 1])
async def test_a_write_that_may_not_be_made_any_more_never_leaves(still_allowed: int) -> None:
    """Also when that is found only as its bytes are about to go, and when it would be sent anew."""
    received = bytearray()
    handlers: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        received.extend(await reader.read())

    async def load(configuration: Configuration, rejected: bool) -> None:
        """There are no credentials."""

    answers = iter([True] * still_allowed)
    async with serving(serve) as port:
        access = ClusterAccess(Configuration(host=f"http://127.0.0.1:{port}"), load, "default")
        async with Cluster(access, may_write=lambda: next(answers, False)) as cluster:
            for write in (
                lambda: cluster.merge(MAPS, "n", "m", {}),
                lambda: cluster.apply(MAPS, configmap("n"), "one"),
                lambda: cluster.create(MAPS, configmap("n"), "one"),
                lambda: cluster.replace(MAPS, configmap("n"), "one"),
                lambda: cluster.delete(MAPS, "n", "m"),
            ):
                answers = iter([True] * still_allowed)
                with pytest.raises(ApiError) as error:
                    await write()
                assert error.value.status == 0
        await asyncio.gather(*filter(None, handlers))  # each has read all that came
    assert bytes(received) == b""


async def test_reads_and_allowed_writes_pass_the_fence(
    control_plane: Any, access: ClusterAccess
) -> None:
    namespace = control_plane.namespace("fence")
    allowed = True
    async with Cluster(access, timeout=60, may_write=lambda: allowed) as cluster:
        await cluster.create(MAPS, configmap(namespace), "one")
        allowed = False
        with pytest.raises(ApiError, match="may not write any more"):
            await cluster.delete(MAPS, namespace, "m")
        assert await cluster.get(MAPS, namespace, "m") is not None
