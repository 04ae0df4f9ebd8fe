"""Keeps a copy of one kind of object: listed once, then watched for good.

What goes wrong on the way is answered as the Kubernetes API wants it: a watch that ends is taken up
at the last version seen, which bookmarks keep young; a version that the server has forgotten (410)
means a new list; whatever else fails is tried again after a pause that grows. Meanwhile the copy
stays as it is. From time to time it is listed anew, whatever the watch said.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import httpx
import msgspec
import structlog

from kvasir.kube import ApiError
from kvasir_router.discovery.kubernetes_api import KubernetesApi, WatchEvent

_log = structlog.get_logger("kvasir_router.discovery")

_GONE = 410

# A watch that ends sooner without an event did not work.
_MIN_WATCH_SECONDS = 1.0

# The pause begins anew after so long without a failure.
_FAILURE_RESET_SECONDS = 60.0

_PROBLEMS = (ApiError, httpx.HTTPError, httpx.StreamError, msgspec.MsgspecError, OSError)


@dataclass(frozen=True, slots=True)
class Timing:
    """How often the API server is asked, in seconds."""

    resync: float = 600.0
    """Between two lists."""

    watch: float = 300.0
    """Of one watch, at most: then its token is young again."""

    pause: float = 0.2
    """After a failure; doubled with each further one."""

    longest_pause: float = 5.0


@dataclass(frozen=True, slots=True)
class Collection:
    """Which objects: a path of the API, and a label selector."""

    path: str
    selector: str = ""

    @property
    def params(self) -> Mapping[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str


class _Versioned(msgspec.Struct):
    metadata: _Version


_decode_version = msgspec.json.Decoder(_Versioned).decode


class Identified(Protocol):
    """What is kept of an object."""

    @property
    def uid(self) -> str: ...


Kind = TypeVar("Kind", bound=Identified)


class Reflector(Generic[Kind]):
    """The objects of a collection by their uid, each as `read` makes it of its JSON. `changed` is
    called whenever they do; `reported` with whether the last request was answered as it should."""

    def __init__(
        self,
        api: KubernetesApi,
        collection: Collection,
        read: Callable[[msgspec.Raw], Kind],
        timing: Timing,
        *,
        changed: Callable[[], None],
        reported: Callable[[bool], None],
    ) -> None:
        self.objects: dict[str, Kind] = {}
        self.listed = False
        """Whether `objects` was complete once."""
        self._api = api
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
            except _PROBLEMS as problem:
                await self._failed(problem)

    async def _list(self) -> None:
        objects: dict[str, Kind] = {}
        version = ""
        async with aclosing(
            self._api.pages(self._collection.path, self._collection.params)
        ) as pages:
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

    async def _watch(self) -> None:
        """One watch, to its end. Raises what the API does, and ApiError for one without a use."""
        began = _now()
        seconds = min(self._timing.watch * random.uniform(0.8, 1), self._list_due - began)
        params = {
            **self._collection.params,
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(max(int(seconds), 1)),
        }
        useful = False
        async with self._api.watch(self._collection.path, params) as events:
            self._works()
            async for event in events:
                useful = True
                self._see(event)
        if _now() >= self._list_due:
            self._version = None
        if not useful and _now() - began < _MIN_WATCH_SECONDS:
            raise ApiError(0, "Useless", "the watch ended as soon as it had begun")

    def _see(self, event: WatchEvent) -> None:
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
        """None for an object of another shape: the others are not to suffer from it."""
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
        if now - self._failed_at > _FAILURE_RESET_SECONDS:
            self._failures = 0
        self._failed_at = now
        pause = self._timing.pause * 2 ** min(self._failures, 16)
        self._failures += 1
        await asyncio.sleep(min(pause, self._timing.longest_pause) * random.uniform(0.5, 1))


def _now() -> float:
    return asyncio.get_running_loop().time()
