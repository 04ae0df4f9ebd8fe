"""A copy of one kind of object: listed once, then watched for good.

What goes wrong on the way is answered as the Kubernetes API wants it: a watch that ends is taken up
at the last version seen, which bookmarks keep young; a version that the server has forgotten (410)
means a new list; whatever else fails is tried again after a pause that grows. Meanwhile the copy
stays as it is. From time to time it is listed anew, whatever the watch said.

The official client's watch decodes every object whole and begins anew without a pause. Here objects
come as raw JSON, a page at a time: whoever reads them decodes a few fields, and between two pages
the event loop has its turn. It takes msgspec, which the router brings.
"""

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import aiohttp
import msgspec
import structlog

from kvasir.kube.api import ApiError
from kvasir.kube.client import Cluster, read_body, refusal

_log = structlog.get_logger("kvasir.kube")

PAGE_OBJECTS = 100
"""Objects of one page of a list: what is decoded in one turn of the event loop."""

_MAX_PAGE_BYTES = 64 * 1024 * 1024
_MAX_EVENT_BYTES = 8 * 1024 * 1024

# Compressed lists would cost more time in the event loop than they save on the wire.
_HEADERS = {"Accept-Encoding": "identity"}

# A dead API server closes nothing: it is noticed after 25 s.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

_GONE = 410

# A watch that ends sooner without an event did not work.
_SHORTEST_WATCH = 1.0

# The pause begins anew after so long without a failure.
_FORGET_FAILURES = 60.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals at which the API server is asked, in seconds."""

    resync: float = 600.0
    """Seconds between two lists."""

    watch: float = 300.0
    """Maximum seconds of one watch; the next one begins with a fresh token."""

    pause: float = 0.2
    """Seconds of the pause after a failure; doubled with each further one."""

    longest_pause: float = 5.0

    silence: float = 90.0
    """Seconds that a watch may send nothing: bookmarks come at least every 75 s."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Objects to watch: a path of the API, and a label selector."""

    path: str
    selector: str = ""

    @property
    def params(self) -> Mapping[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class _Versioned(msgspec.Struct):
    metadata: _Version


class _Page(_Versioned):
    items: list[msgspec.Raw] = []


class _Event(msgspec.Struct):
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, with the object."""

    type: str
    object: msgspec.Raw


_decode_version = msgspec.json.Decoder(_Versioned).decode
_decode_page = msgspec.json.Decoder(_Page).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class Identified(Protocol):
    """Part of an object that is kept."""

    @property
    def uid(self) -> str: ...


Kind = TypeVar("Kind", bound=Identified)


class Reflector(Generic[Kind]):
    """The objects of a collection by their uid, each as `read` makes it of its JSON. `changed` is
    called whenever they do; `reported` with whether the last request was answered as it should."""

    def __init__(
        self,
        cluster: Cluster,
        collection: Collection,
        read: Callable[[msgspec.Raw], Kind],
        timing: Timing,
        *,
        changed: Callable[[], None],
        reported: Callable[[bool], None],
    ) -> None:
        self.objects: dict[str, Kind] = {}
        self.listed = False
        """True once `objects` has been complete."""
        self._cluster = cluster
        self._collection = collection
        self._decode = read
        self._timing = timing
        self._changed = changed
        self._reported = reported
        self._version: str | None = None
        self._list_due = 0.0
        self._failures = 0
        self._failed_at = 0.0
        self._problem = ""

    async def run(self) -> None:
        """Keep the copy, forever."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except (ApiError, msgspec.MsgspecError) as problem:
                await self._failed(problem)

    async def _list(self) -> None:
        objects: dict[str, Kind] = {}
        version = ""
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                found = [self._read(raw) for raw in page.items]
                objects |= {each.uid: each for each in found if each is not None}
                version = page.metadata.resource_version
        self._version = version
        self._list_due = _now() + self._timing.resync * random.uniform(0.8, 1.2)
        self.listed = True
        self.objects = objects
        self._works()
        self._changed()

    async def _pages(self) -> AsyncGenerator[_Page, None]:
        query = {**self._collection.params, "limit": str(PAGE_OBJECTS)}
        while True:
            async with self._get(query) as response:
                page = _decode_page(await read_body(response, _MAX_PAGE_BYTES))
            yield page
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_

    async def _watch(self) -> None:
        """Run one watch to its end. Raises the API's errors, and ApiError for a watch that ends at
        once."""
        began = _now()
        seconds = min(self._timing.watch * random.uniform(0.8, 1), self._list_due - began)
        query = {
            **self._collection.params,
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(max(int(seconds), 1)),
            "watch": "true",
            "allowWatchBookmarks": "true",
        }
        useful = False
        async with self._get(query) as response:
            _keep_alive(response)
            self._works()
            async for line in _lines(response):
                useful = True
                self._see(_decode_event(line))
        if _now() >= self._list_due:
            self._version = None
        if not useful and _now() - began < _SHORTEST_WATCH:
            raise ApiError(0, "Useless", "the watch ended as soon as it had begun")

    def _get(self, query: Mapping[str, str]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(sock_connect=5.0, sock_read=self._timing.silence)
        path = self._collection.path
        return self._cluster.open("GET", path, query, headers=_HEADERS, timeout=timeout)

    def _see(self, event: _Event) -> None:
        if event.type == "ERROR":
            raise refusal(0, bytes(event.object))
        self._version = _decode_version(event.object).metadata.resource_version
        if event.type == "BOOKMARK":
            return
        found = self._read(event.object)
        if found is None:
            return
        uid = found.uid
        before = self.objects.get(uid)
        if event.type == "DELETED":
            self.objects.pop(uid, None)
        else:
            self.objects[uid] = found
        if self.objects.get(uid) != before:
            self._changed()

    def _read(self, raw: msgspec.Raw) -> Kind | None:
        """Return the decoded object, or None for one of another shape: the others are not to suffer
        from it."""
        try:
            return self._decode(raw)
        except msgspec.MsgspecError as error:
            _log.error("object not understood", path=self._collection.path, error=str(error))
            return None

    def _works(self) -> None:
        if self._problem:
            _log.info("the API server answers again", path=self._collection.path)
        self._problem = ""
        self._reported(True)

    async def _failed(self, problem: Exception) -> None:
        """Say what is new about it, and pause."""
        if isinstance(problem, ApiError) and problem.status == _GONE:
            self._version = None
        else:
            self._reported(False)
            said = f"{type(problem).__name__}: {problem}"
            if said != self._problem:
                self._problem = said
                _log.warning(
                    "the API server does not serve", path=self._collection.path, error=said
                )
        now = _now()
        if now - self._failed_at > _FORGET_FAILURES:
            self._failures = 0
        self._failed_at = now
        pause = self._timing.pause * 2 ** min(self._failures, 16)
        self._failures += 1
        await asyncio.sleep(min(pause, self._timing.longest_pause) * random.uniform(0.5, 1))


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for part in response.content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise ApiError(0, "TooLarge", f"an event is larger than {_MAX_EVENT_BYTES} bytes")
        for line in lines:
            yield line


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    transport = response.connection.transport if response.connection is not None else None
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None:
        for option in _KEEP_ALIVE:
            connection.setsockopt(*option)


def _now() -> float:
    return asyncio.get_running_loop().time()
