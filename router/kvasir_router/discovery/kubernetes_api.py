"""The three requests that discovery makes of the Kubernetes API: get, list and watch.

Over httpx, which every part has already; the official client would bring a second HTTP stack and
half a second of imports. Objects come as raw JSON: whoever reads them decodes a few fields.
"""

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from kvasir_router.discovery.base import DiscoveryError
from kvasir_router.yaml_file import FileWatch

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


class ApiError(Exception):
    """The API server refused, or ended a watch with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """A part of a list."""

    metadata: ListMeta
    items: list[msgspec.Raw] = []


class WatchEvent(msgspec.Struct):
    """ADDED, MODIFIED, DELETED or BOOKMARK, with the object."""

    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    message: str = ""
    code: int = 0


_decode_page = msgspec.json.Decoder(Page).decode
_decode_event = msgspec.json.Decoder(WatchEvent).decode
_decode_status = msgspec.json.Decoder(_Status).decode


class KubernetesApi:
    """A client with the rights of a mounted service account.

    The token is read again for each request and the authorities whenever their file changes, as the
    kubelet renews both. `silence` is how long a watch may send nothing, in seconds: bookmarks come
    at least every 75 s.
    """

    def __init__(self, url: str, account: Path, silence: float = 90.0) -> None:
        """Raises DiscoveryError."""
        self._token = account / "token"
        self._authorities = account / "ca.crt"
        self._authorities_watch = FileWatch(self._authorities)
        self._authorities_watch.changed()
        try:
            self._context = ssl.create_default_context(cafile=self._authorities)
        except OSError as error:
            raise DiscoveryError(
                f"cannot read the cluster's authorities {self._authorities}: {error}; "
                "mount a service account's token (automountServiceAccountToken)"
            ) from None
        self._client = httpx.AsyncClient(
            base_url=url,
            # Compressed lists would cost more time in the event loop than they save on the wire.
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(5.0, read=silence),
            transport=httpx.AsyncHTTPTransport(
                verify=self._context,
                limits=httpx.Limits(),  # a connection for each watch
                socket_options=_KEEP_ALIVE,
            ),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def pages(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Page]:
        """A list, whole. Raises ApiError, httpx.HTTPError or msgspec.MsgspecError."""
        query = {**params, "limit": str(PAGE_OBJECTS)}
        while True:
            async with self._get(path, query) as response:
                page = _decode_page(await _read(response, _MAX_PAGE_BYTES))
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
        if self._authorities_watch.changed():
            self._context.load_verify_locations(self._authorities)
        token = self._token.read_text(encoding="ascii").strip()
        headers = {"Authorization": f"Bearer {token}"}
        async with self._client.stream("GET", path, params=params, headers=headers) as response:
            if response.status_code != 200:
                text = await _read(response, _MAX_STATUS_BYTES)
                raise ApiError(response.status_code, _message(text))
            yield response


async def _events(response: httpx.Response) -> AsyncIterator[WatchEvent]:
    """One for each line."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise ApiError(response.status_code, f"an event exceeds {_MAX_EVENT_BYTES} bytes")
        for line in lines:
            yield _checked(_decode_event(line))


async def _read(response: httpx.Response, limit: int) -> bytes:
    """The whole body. Raises ApiError when it is larger than `limit` bytes."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > limit:
            raise ApiError(response.status_code, f"the answer is larger than {limit} bytes")
    return bytes(body)


def _message(body: bytes) -> str:
    """What an answer other than 200 says; empty when it is no Status."""
    try:
        return _decode_status(body).message
    except msgspec.MsgspecError:
        return ""


def _checked(event: WatchEvent) -> WatchEvent:
    """Raises ApiError for an event that tells of an error."""
    if event.type == "ERROR":
        status = _decode_status(event.object)
        raise ApiError(status.code, status.message)
    return event
