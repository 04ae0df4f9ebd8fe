"""Requests to a Kubernetes API server, with objects as plain dictionaries.

On the official client's asyncio transport: nothing blocks the event loop, no thread waits for an
answer, and what is cancelled ends at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from kubernetes.aio.client.rest import RESTClientObject

from kvasir.kube.api import AccessError, ApiError, Kind
from kvasir.kube.config import ClusterAccess

__all__ = ["Cluster", "read_body"]

Object = dict[str, Any]

_MAX_BYTES = 64 * 1024 * 1024
_MAX_STATUS_BYTES = 64 * 1024
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_PAGE_OBJECTS = "500"


class _Connector(aiohttp.TCPConnector):
    """Resets what it would close. A TLS connection whose answer was not read to its end would say
    goodbye and wait for the server's, which closing the session does not wait for: its socket
    outlives the event loop."""

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        if should_close or protocol.should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


class _Transport(RESTClientObject):  # type: ignore[misc]  # the package has no types
    """The official client's, with our connector."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return _Connector(limit=self.maxsize, ssl=self.ssl_context)


class Cluster:
    """Client of one API server. Every method raises ApiError."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        timeout: float = 10.0,
        agent: str = "kvasir",
        may_write: Callable[[], bool] | None = None,
    ) -> None:
        """`may_write` is asked when a write begins and again when its bytes are about to leave, at
        each attempt; if it says no, nothing is sent. Raises AccessError when certificates cannot be
        used."""
        configuration = access.configuration
        if may_write is not None:
            configuration.trace_configs = [_fence(may_write)]
        configuration.connection_pool_maxsize = 0  # no limit: each watch holds a connection
        # Only a kubeconfig's own proxy: the environment's leads out of the cluster
        configuration.client_session_kwargs = {"trust_env": False}
        try:
            self._transport = _Transport(configuration)
        except (OSError, ValueError) as error:
            raise AccessError(f"a certificate for {access.server} is no good: {error}") from None
        self.access = access
        self._timeout = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
        self._headers = {"Accept": "application/json", "User-Agent": agent}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()
        await asyncio.sleep(0)  # sockets are closed in the loop's next turn

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """The object, or None where there is none."""
        try:
            return await self._send("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str = "", fields: str = ""
    ) -> list[Object]:
        """All objects in `namespace`, or everywhere, with labels as `selector` says, and with
        `fields` as a field selector says."""
        found: list[Object] = []
        query = {"limit": _PAGE_OBJECTS, **({"labelSelector": selector} if selector else {})}
        if fields:
            query["fieldSelector"] = fields
        while True:
            page = await self._send("GET", kind.path(namespace), query)
            found += page.get("items") or []
            query["continue"] = page.get("metadata", {}).get("continue") or ""
            if not query["continue"]:
                return found

    async def apply(
        self, kind: Kind, body: Mapping[str, Any], manager: str, part: str = ""
    ) -> Object:
        """Server-side apply: the whole intent of `manager`, over what others hold of it. Refused
        with 409 where `body` has a resourceVersion or uid that the object no longer has."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], part)
        query = {"fieldManager": manager, "force": "true"}
        return await self._send("PATCH", path, query, body, _APPLY)

    async def create(self, kind: Kind, body: Mapping[str, Any], manager: str) -> Object:
        """A new object."""
        path = kind.path(body["metadata"].get("namespace"))
        return await self._send("POST", path, {"fieldManager": manager}, body)

    async def replace(self, kind: Kind, body: Mapping[str, Any], manager: str) -> Object:
        """The whole object, if it is still at the resourceVersion in `body`."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self._send("PUT", path, {"fieldManager": manager}, body)

    async def merge_status(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        status: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> Object:
        """Strategic merge into the status, where conditions are merged by type; a pod's status
        takes annotations of `metadata` in the same write. Refused with 409 as `apply` is."""
        path = kind.path(namespace, name, "status")
        body: Object = {"status": status, **({"metadata": metadata} if metadata else {})}
        return await self._send("PATCH", path, {}, body, _STRATEGIC)

    async def merge(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """JSON merge patch: null removes. Refused with 409 as `apply` is."""
        return await self._send("PATCH", kind.path(namespace, name), {}, body, _MERGE)

    async def scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, version: str, manager: str
    ) -> Object:
        """Set replicas through the scale subresource, if the object is still at resourceVersion
        `version`; return its Scale."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        path = kind.path(namespace, name, "scale")
        return await self._send("PATCH", path, {"fieldManager": manager}, body, _MERGE)

    async def replace_spec(
        self, kind: Kind, live: Mapping[str, Any], spec: Mapping[str, Any], manager: str
    ) -> Object:
        """The whole spec of `live`, if it is still at that resourceVersion: nothing stays of what
        others put into it."""
        metadata = live["metadata"]
        version = metadata["resourceVersion"]
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/spec", "value": spec},
        ]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self._send("PATCH", path, {"fieldManager": manager}, patch, _JSON_PATCH)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """The object with `uid`, whatever its name holds by then; its dependents follow."""
        body: Object = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._send("DELETE", kind.path(namespace, name), {}, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def serves(self, api_version: str, plural: str) -> bool:
        """Return True if the API has this kind now."""
        try:
            found = await self._send("GET", Kind(api_version, "").path().rstrip("/"))
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(each.get("name") == plural for each in found.get("resources") or ())

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the answer's body is still to be read. Raises ApiError for a status of
        400 and more, and for what the connection does until the context ends."""
        sent = {**self._headers, **(headers or {})}
        url = f"{self.access.server}{path}"
        if query:
            url += f"?{urlencode(query)}"
        try:
            if (credentials := await self.access.authorization()) is not None:
                sent["Authorization"] = credentials
            answer = await self._answer(method, url, sent, body, timeout or self._timeout)
            async with answer.response as response:
                await self._check(response)
                yield response
        except (aiohttp.ClientError, AccessError, OSError) as error:
            problem = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"the API server is not reached: {problem}") from None

    async def _answer(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Any,
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        """Return the official client's response. aiohttp sends anew, on another connection, what
        HTTP calls idempotent; so are our patches, each of which says how things shall be."""
        attempts = 2 if method == "PATCH" else 1
        while True:
            attempts -= 1
            try:
                return await self._transport.request(
                    method, url, headers=headers, body=body, _request_timeout=timeout
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not attempts:
                    raise

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 401:
            self.access.reject()
        if response.status >= 400:
            content = await read_body(response, _MAX_STATUS_BYTES)
            raise refusal(response.status, content)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Content-Type": content_type}
        async with self.open(method, path, query, body, headers) as response:
            content = await read_body(response, _MAX_BYTES)
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise refusal(response.status, content)
        return found


def _fence(may_write: Callable[[], bool]) -> aiohttp.TraceConfig:
    """Return hooks that keep a request other than GET from leaving unless `may_write`."""

    async def check(
        _session: aiohttp.ClientSession,
        _context: Any,
        request: aiohttp.TraceRequestStartParams | aiohttp.TraceRequestChunkSentParams,
    ) -> None:
        if request.method != "GET" and not may_write():
            raise ApiError(0, "Fenced", "this process may not write any more")

    hooks = aiohttp.TraceConfig()
    hooks.on_request_start.append(check)
    # The head waits for the first part of the body, and every write has one: this comes last
    hooks.on_request_chunk_sent.append(check)
    return hooks


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the whole body. Raises ApiError when it is larger than `limit` bytes."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit:
            raise ApiError(0, "TooLarge", f"an answer is larger than {limit} bytes")
    return bytes(body)


def refusal(status: int, content: bytes) -> ApiError:
    """Return what the API says in place of an object; status 0 = as it stands in there."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    told: Mapping[str, Any] = found if isinstance(found, dict) else {}
    text = str(told.get("message") or content[:200].decode(errors="replace") or "no answer")
    code = told.get("code")
    status = status or (code if isinstance(code, int) else 0)
    return ApiError(status, str(told.get("reason") or ""), text)
