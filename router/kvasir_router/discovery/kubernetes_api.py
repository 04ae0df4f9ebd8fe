"""Lists and watches of the Kubernetes API, as a router can afford them.

Unlike in `kvasir.kube.kube_client`, objects come as raw JSON, a page at a time: whoever reads them
decodes a few fields, and between two pages requests have their turn.
"""

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import msgspec

from kvasir.kube import ApiError, ClusterAccess, read_body

PAGE_OBJECTS = 100
"""Objects of one page of a list: what is decoded in one turn of the event loop."""

_MAX_PAGE_BYTES = 64 * 1024 * 1024
_MAX_EVENT_BYTES = 8 * 1024 * 1024
_MAX_STATUS_BYTES = 64 * 1024

# A dead API server closes nothing: it is noticed after 25 s.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class ObjectPage(msgspec.Struct):
    """A part of a list."""

    metadata: ListMeta
    items: list[msgspec.Raw] = []


class WatchEvent(msgspec.Struct):
    """ADDED, MODIFIED, DELETED or BOOKMARK, with the object."""

    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0


_decode_page = msgspec.json.Decoder(ObjectPage).decode
_decode_event = msgspec.json.Decoder(WatchEvent).decode
_decode_status = msgspec.json.Decoder(_Status).decode


class KubernetesApi:
    """One API server. `silence` is how long a watch may send nothing, in seconds: bookmarks come
    at least every 75 s."""

    def __init__(self, access: ClusterAccess, silence: float = 90.0) -> None:
        self._authorization = access.authorization
        self._client = httpx.AsyncClient(
            base_url=access.server,
            # Compressed lists would cost more time in the event loop than they save on the wire.
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": "kvasir-router",
            },
            timeout=httpx.Timeout(5.0, read=silence),
            transport=httpx.AsyncHTTPTransport(
                verify=access.context,
                limits=httpx.Limits(),  # a connection for each watch
                socket_options=_KEEP_ALIVE,
            ),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def pages(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[ObjectPage, None]:
        """A list, whole. Raises ApiError, httpx.HTTPError, OSError or msgspec.MsgspecError."""
        query = {**params, "limit": str(PAGE_OBJECTS)}
        while True:
            async with self._get(path, query) as response:
                page = _decode_page(await read_body(response, _MAX_PAGE_BYTES))
            yield page
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Events, until the server ends the watch. Both it and they raise as `pages` does."""
        query = {**params, "watch": "true", "allowWatchBookmarks": "true"}
        async with self._get(path, query) as response:
            yield _events(response)

    @asynccontextmanager
    async def _get(self, path: str, params: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """A response with status 200."""
        credentials = self._authorization()
        headers = {"Authorization": credentials} if credentials else {}
        async with self._client.stream("GET", path, params=params, headers=headers) as response:
            if response.status_code != 200:
                text = await read_body(response, _MAX_STATUS_BYTES)
                raise _refusal(response.status_code, text)
            yield response


async def _events(response: httpx.Response) -> AsyncIterator[WatchEvent]:
    """One for each line."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise ApiError(0, "TooLarge", f"an event is larger than {_MAX_EVENT_BYTES} bytes")
        for line in lines:
            yield _checked(_decode_event(line))


def _refusal(status: int, body: bytes) -> ApiError:
    """What an answer other than 200 says."""
    try:
        told = _decode_status(body)
    except msgspec.MsgspecError:
        return ApiError(status, "", f"status {status}")
    return ApiError(status, told.reason, told.message)


def _checked(event: WatchEvent) -> WatchEvent:
    """Raises ApiError for an event that tells of an error."""
    if event.type == "ERROR":
        told = _decode_status(event.object)
        raise ApiError(told.code, told.reason, told.message)
    return event
