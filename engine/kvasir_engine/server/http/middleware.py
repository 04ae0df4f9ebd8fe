"""Middleware for every HTTP request: request id, API key, metrics."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir.http_app import DOCS_PATHS
from kvasir_engine.server.anthropic.messages_error import has_messages_errors, messages_error
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.http.routes import json_response
from kvasir_engine.server.openai.api_error import ApiError

UNAUTHENTICATED_PATHS = DOCS_PATHS | {
    "/health",
    "/live",
    "/ready",
    "/metrics",
    "/version",
    "/v2/health/live",
    "/v2/health/ready",
}
"""Paths that probes and collectors read, who have no key, and the documentation, as vLLM's."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/-]{1,128}")

CountRequest = Callable[[str, int, float], None]
"""Path, status and seconds of an answered request."""


class RootPathMiddleware:
    """Take the prefix that a proxy leaves in front of paths off them, before all else."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._prefix = root_path
        self._raw = root_path.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; one without the prefix is as it came."""
        if scope["type"] == "http" and scope["path"].startswith(self._prefix + "/"):
            raw = scope.get("raw_path") or b""
            scope = {
                **scope,
                "path": scope["path"][len(self._prefix) :],
                "raw_path": raw.removeprefix(self._raw),
            }
        await self._app(scope, receive, send)


class RequestMiddleware:
    """ASGI middleware without tasks of its own: a stream's chunks pass through one call."""

    def __init__(self, app: ASGIApp, keyring: Keyring, count: CountRequest) -> None:
        self._app = app
        self._keyring = keyring
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; `scope["state"]` gets `request_id`, `fleet`, and `send`: the
        server's own, by which a stream's chunks skip every layer between."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = _request_id(headers)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["fleet"] = self._keyring.is_fleet(headers)
        state["send"] = send
        began = time.monotonic()
        path = scope["path"]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                ]
                self._count(path, message["status"], time.monotonic() - began)
            await send(message)

        if path in UNAUTHENTICATED_PATHS or state["fleet"] or self._keyring.admits(headers):
            await self._app(scope, receive, send_with_id)
        else:
            await _refused(path)(scope, receive, send_with_id)


def _refused(path: str) -> Response:
    error = ApiError(
        401,
        "The API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: "
        "KEY'.",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
    if not has_messages_errors(path):
        return error.response()
    return json_response(messages_error(error), error.status, error.headers)


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The caller's X-Request-Id when it is harmless to log and to echo, else a new one."""
    sent = headers.get(b"x-request-id", b"")
    if _REQUEST_ID.fullmatch(sent):
        return sent.decode()
    return uuid.uuid4().hex
