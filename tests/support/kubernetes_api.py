"""A Kubernetes API server that lists and watches, and fails as a test tells it to.

For what a real one cannot be made to do on demand: forget versions, cut watches in the middle of an
event, fall silent. What a real one does is tested against a real one.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.aio.client import Configuration

from kvasir.cli.local.ports import reserve_port
from kvasir.kube.config import ClusterAccess
from kvasir.resource import labels
from kvasir.resource.ownership.model_name import claim_manifest
from kvasir.resource.ownership.name_claims import Holder, names_of

LLMDS = "/apis/kvasir.dev/v1alpha1/llmdeployments"
NAMES = "/apis/kvasir.dev/v1alpha1/modelnames"
PODS = "/api/v1/pods"

Object = dict[str, Any]


@dataclass(eq=False)
class Watch:
    """Open watch of a client."""

    path: str
    selector: str
    version: str
    writer: asyncio.StreamWriter
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, kind: str, it: Object) -> None:
        self.write(json.dumps({"type": kind, "object": it}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End the watch as a server does after timeoutSeconds."""
        self.writer.write(b"0\r\n\r\n")
        self.closed.set()

    def cut(self) -> None:
        """Cut the watch as a server does that dies."""
        self.writer.transport.abort()
        self.closed.set()


@dataclass
class FakeApi:
    port: int = 0
    objects: dict[str, Object] = field(default_factory=dict)
    """Objects by uid; each has its list's path under "path"."""
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    """Data of Secrets by their path."""
    version: int = 100
    watches: list[Watch] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    refuse: dict[str, int] = field(default_factory=dict)
    """Status of the next answers, by "list", "watch" or "all"."""
    token: str = "t1"
    _told: list[tuple[int, str, str, Object]] = field(default_factory=list)
    """Version, kind, path and object of each event."""

    async def start(self) -> None:
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Nobody listens any more, and every connection is reset."""
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            self._tasks[task].transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def access(self) -> ClusterAccess:
        """Access to the server; its credentials are `token` as it is when they are loaded."""

        async def load(configuration: Configuration, rejected: bool) -> None:
            configuration.api_key["BearerToken"] = f"Bearer {self.token}"

        configuration = Configuration(
            host=f"http://127.0.0.1:{self.port}",
            api_key={"BearerToken": f"Bearer {self.token}"},
        )
        return ClusterAccess(configuration, load, "default")

    def write_kubeconfig(self, path: Path) -> Path:
        content = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
        }
        path.write_text(json.dumps(content))
        return path

    def put(self, path: str, it: Object, *, tell: bool = True) -> None:
        """Make or change an object. LLMDeployments claim their names, as an operator does it."""
        uid = it["metadata"]["uid"]
        if path == LLMDS and isinstance((it["spec"] or {}).get("model"), dict):
            for claim in claims(it):
                if claim["metadata"]["uid"] not in self.objects:
                    self.put(NAMES, claim, tell=tell)
        kind = "MODIFIED" if uid in self.objects else "ADDED"
        self.objects[uid] = {"path": path} | self._stamped(it)
        self._tell(kind, path, self.objects[uid], tell)

    def delete(self, uid: str, *, tell: bool = True) -> None:
        """Remove an object; the names that an LLMDeployment has are released."""
        it = self._stamped(self.objects.pop(uid))
        self._tell("DELETED", it["path"], it, tell)
        for other in [key for key, each in self.objects.items() if _holder_uid(each) == uid]:
            self.delete(other, tell=tell)

    def bookmark(self) -> None:
        self.version += 1
        for watch in self.watches:
            it = {"kind": "X", "metadata": {"resourceVersion": str(self.version)}}
            watch.send("BOOKMARK", it)

    def count(self, kind: str) -> int:
        """Lists or watches that were asked for."""
        return sum(
            (query.get("watch") == "true") == (kind == "watch") for _, query in self.requests
        )

    @property
    def listed(self) -> set[tuple[str, str]]:
        """Paths and selectors of the lists that were asked for."""
        lists = [each for each in self.requests if "limit" in each[1]]
        return {(path, query.get("labelSelector", "")) for path, query in lists}

    def _stamped(self, it: Object) -> Object:
        self.version += 1
        return it | {"metadata": it["metadata"] | {"resourceVersion": str(self.version)}}

    def _tell(self, kind: str, path: str, it: Object, tell: bool) -> None:
        if tell:
            self._told.append((self.version, kind, path, it))
        for watch in self.watches if tell else ():
            if _in(path, watch.path, it) and _selected(it, watch.selector):
                watch.send(kind, it)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        try:
            while not writer.is_closing():
                await self._answer((await reader.readuntil(b"\r\n\r\n")).decode(), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the other side closed, or the test is over
        finally:
            writer.transport.abort()
            del self._tasks[task]

    async def _answer(
        self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parts = urlsplit(head.split(" ")[1])
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.requests.append((parts.path, query))
        self.headers.append(head)
        kind = "watch" if query.get("watch") == "true" else "list"
        if "/secrets/" in parts.path:
            kind = "secret"
        status = self.refuse.get(kind) or self.refuse.get("all")
        if status:
            body = json.dumps({"kind": "Status", "message": "on order", "code": status}).encode()
            _write(writer, status, body)
        elif kind == "secret":
            found = self.secrets.get(parts.path)
            told = {"kind": "Status", "code": 404} if found is None else {"data": found}
            _write(writer, 404 if found is None else 200, json.dumps(told).encode())
        elif kind == "list":
            self._list(parts.path, query, writer)
        else:
            selector = query.get("labelSelector", "")
            await self._watch(Watch(parts.path, selector, query["resourceVersion"], writer), reader)

    def _list(self, path: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        selector = query.get("labelSelector", "")
        found = [
            it
            for it in self.objects.values()
            if _in(it["path"], path, it) and _selected(it, selector)
        ]
        first, limit = int(query.get("continue", 0)), int(query["limit"])
        more = {"continue": str(first + limit)} if first + limit < len(found) else {}
        meta = {"resourceVersion": str(self.version)} | more
        _write(writer, 200, json.dumps({"metadata": meta, "items": found[first:][:limit]}).encode())

    async def _watch(self, watch: Watch, reader: asyncio.StreamReader) -> None:
        watch.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        # What came behind the list that it goes on from.
        for version, kind, path, it in self._told:
            newer = version > int(watch.version or 0)
            if newer and _in(path, watch.path, it) and _selected(it, watch.selector):
                watch.send(kind, it)
        self.watches.append(watch)
        ended = asyncio.create_task(watch.closed.wait())
        left = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.watches.remove(watch)
            ended.cancel()
            left.cancel()
            await asyncio.gather(ended, left, return_exceptions=True)


def _write(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


def _in(path: str, asked: str, it: Object) -> bool:
    namespace = it["metadata"].get("namespace", "")
    root, plural = path.rsplit("/", 1)
    return asked in (path, f"{root}/namespaces/{namespace}/{plural}")


def _selected(it: Object, selector: str) -> bool:
    labels = it["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        key, equals, value = part.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def deployment(name: str, namespace: str = "n", **spec: Any) -> Object:
    """An LLMDeployment as the API has it."""
    metadata = {
        "uid": f"uid-{namespace}-{name}",
        "name": name,
        "namespace": namespace,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": metadata, "spec": {"model": {"uri": "builtin://x"}} | spec}


def claims(deployment: Object) -> list[Object]:
    """The ModelNames of an LLMDeployment, each with its name as uid."""
    metadata = deployment["metadata"]
    holder = Holder(metadata.get("namespace", ""), metadata["name"])
    made = [
        claim_manifest(labels.DEFAULT_CLASS, name, holder, metadata["uid"])
        for name in names_of(deployment)
    ]
    for each in made:
        each["metadata"]["uid"] = each["metadata"]["name"]
    return made


def _holder_uid(it: Object) -> str:
    by = (it.get("spec") or {}).get("claimedBy") or {}
    return str(by.get("uid", ""))


def pod(
    name: str,
    owner: str = "tiny",
    namespace: str = "n",
    *,
    ip: str = "127.0.0.1",
    port: int = 8000,
    restarts: int = 0,
    started: bool = True,
    label: str = "kvasir.dev/deployment",
    container: str = "engine",
) -> Object:
    """An engine's pod, running."""
    status = {
        "name": container,
        "restartCount": restarts,
        "started": started,
        "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
    }
    return {
        "metadata": {
            "uid": f"uid-{name}",
            "name": name,
            "namespace": namespace,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {label: owner, "kvasir.dev/component": "engine"},
        },
        "spec": {
            "containers": [{"name": container, "ports": [{"name": "http", "containerPort": port}]}]
        },
        "status": {"podIP": ip, "phase": "Running", "containerStatuses": [status]},
    }


def leaving(it: Object) -> Object:
    """The same pod, being deleted."""
    stamp = {"deletionTimestamp": "2026-01-01T00:10:00Z"}
    return it | {"metadata": it["metadata"] | stamp}


@pytest.fixture(name="claims")
def claims_fixture() -> Callable[[Object], list[Object]]:
    return claims


@pytest.fixture(name="deployment")
def deployment_fixture() -> Callable[..., Object]:
    return deployment


@pytest.fixture(name="pod")
def pod_fixture() -> Callable[..., Object]:
    return pod


@pytest.fixture(name="leaving")
def leaving_fixture() -> Callable[[Object], Object]:
    return leaving


@pytest.fixture
async def start_api() -> AsyncIterator[Callable[..., Awaitable[FakeApi]]]:
    started: list[FakeApi] = []
    with ExitStack() as reserved:

        async def start(**options: Any) -> FakeApi:
            # Nobody else's until the test ends, also while the server is stopped.
            port = reserved.enter_context(reserve_port()).getsockname()[1]
            api = FakeApi(**{"port": port, **options})
            await api.start()
            started.append(api)
            return api

        yield start
        for api in started:
            await api.stop()
