"""Requests to a Kubernetes API server, with objects as plain dictionaries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from kvasir.kube.cluster_access import ClusterAccess

Object = dict[str, Any]

_MAX_BYTES = 64 * 1024 * 1024
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_PAGE_OBJECTS = "500"


class ApiError(Exception):
    """The API server refused; `status` is HTTP's, 0 when it was not reached."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later though nobody changes anything."""
        if "field not declared in schema" in str(self):
            return False  # what an apply has too much is answered with 500
        return self.status in (0, 401, 408, 409, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, and where the API has them."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, part: str = "") -> str:
        """Of one object, of its subresource `part`, or of the list in `namespace` or everywhere."""
        prefix = "/apis" if "/" in self.api_version else "/api"
        steps = [prefix, self.api_version]
        if namespace is not None and self.namespaced:
            steps += ["namespaces", namespace]
        steps.append(self.plural)
        steps += [step for step in (name, part) if step]
        return "/".join(steps)


class Cluster:
    """One API server. Every method raises ApiError."""

    def __init__(self, access: ClusterAccess, *, timeout: float = 10.0) -> None:
        self._authorization = access.authorization
        self._client = httpx.AsyncClient(
            base_url=access.server,
            verify=access.context,
            timeout=timeout,
            trust_env=False,
            headers={"Accept": "application/json", "User-Agent": "kvasir"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """The object, or None where there is none."""
        try:
            return await self._send("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> list[Object]:
        """All objects in `namespace`, or everywhere, with labels as `selector` says."""
        found: list[Object] = []
        query = {"limit": _PAGE_OBJECTS, **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._send("GET", kind.path(namespace), query)
            found += page.get("items") or []
            query["continue"] = page.get("metadata", {}).get("continue") or ""
            if not query["continue"]:
                return found

    async def apply(
        self, kind: Kind, body: Mapping[str, Any], manager: str, part: str = ""
    ) -> Object:
        """Server-side apply: the whole intent of `manager`, over what others hold of it."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], part)
        query = {"fieldManager": manager, "force": "true"}
        return await self._send("PATCH", path, query, body, _APPLY)

    async def create(self, kind: Kind, body: Mapping[str, Any], manager: str) -> Object:
        """A new object."""
        path = kind.path(body["metadata"].get("namespace"))
        return await self._send("POST", path, {"fieldManager": manager}, body, "application/json")

    async def replace(self, kind: Kind, body: Mapping[str, Any], manager: str) -> Object:
        """The whole object, if it is still at the resourceVersion in `body`."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self._send("PUT", path, {"fieldManager": manager}, body, "application/json")

    async def merge_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any]
    ) -> Object:
        """Strategic merge into the status: conditions are merged by type."""
        path = kind.path(namespace, name, "status")
        return await self._send("PATCH", path, {}, {"status": status}, _STRATEGIC)

    async def merge(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """JSON merge patch: null removes."""
        return await self._send("PATCH", kind.path(namespace, name), {}, body, _MERGE)

    async def replace_spec(
        self, kind: Kind, namespace: str, name: str, spec: Mapping[str, Any], manager: str
    ) -> Object:
        """The whole spec: nothing stays of what others put into it."""
        patch = [{"op": "replace", "path": "/spec", "value": spec}]
        query = {"fieldManager": manager}
        return await self._send("PATCH", kind.path(namespace, name), query, patch, _JSON_PATCH)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """The object with `uid`, whatever its name holds by then; its dependents follow."""
        body: Object = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._send("DELETE", kind.path(namespace, name), {}, body, "application/json")
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def serves(self, api_version: str, plural: str) -> bool:
        """Whether the API has this kind now."""
        try:
            found = await self._send("GET", Kind(api_version, "").path().rstrip("/"))
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(each.get("name") == plural for each in found.get("resources") or ())

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = "",
    ) -> Object:
        headers = {"Content-Type": content_type} if content_type else {}
        try:
            if (credentials := self._authorization()) is not None:
                headers["Authorization"] = credentials
            async with self._client.stream(
                method,
                path,
                params=query,
                headers=headers,
                content=None if body is None else json.dumps(body),
            ) as response:
                content = await read_body(response, _MAX_BYTES)
        except (httpx.HTTPError, OSError) as error:
            problem = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"the API server is not reached: {problem}") from None
        return _decoded(response.status_code, content)


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """The whole body. Raises ApiError when it is larger than `limit` bytes."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > limit:
            raise ApiError(0, "TooLarge", f"an answer is larger than {limit} bytes")
    return bytes(body)


def _decoded(status: int, content: bytes) -> Object:
    """The object in an answer, or ApiError with what the answer says."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if isinstance(found, dict) and status < 400:
        return found
    told: Mapping[str, Any] = found if isinstance(found, dict) else {}
    text = str(told.get("message") or content[:200].decode(errors="replace") or "no answer")
    raise ApiError(status, str(told.get("reason") or ""), text)
