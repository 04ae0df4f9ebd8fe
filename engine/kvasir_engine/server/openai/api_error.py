"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
from starlette.responses import Response

from kvasir_engine.core.client import EngineDeadError, RequestRejectedError
from kvasir_engine.server.large_bodies.worker_messages import BodyRefusal, Result

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
}

Names: TypeAlias = str | Callable[[re.Match[str]], str]
"""A replacement, as re.sub takes it."""
FAILED_SENTENCE = "The server failed on this request; its log says why."
_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")
MAX_MESSAGE_CHARS = 2000
"""Longer messages are cut: a chat template's own may hold the whole prompt."""


class ApiError(Exception):
    """An answer that is an error: HTTP `status`, a sentence, the field and a code of OpenAI's."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = f"{message[:MAX_MESSAGE_CHARS]}..."
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}
        self.extra = extra or {}

    def renamed(
        self, names: Iterable[tuple[re.Pattern[str], Names]], origins: Sequence[str] = ()
    ) -> ApiError:
        """The same with names of fields replaced, as re.sub does, in the sentence and the field;
        `origins` are the places in a body that a chat's messages were made of."""

        def origin(match: re.Match[str]) -> str:
            at = int(match[1])
            return origins[at] if at < len(origins) else match[0]

        message, param = self.message, self.param
        for pattern, name in ((_MESSAGE, origin), *names):
            message = pattern.sub(name, message)
            param = param and pattern.sub(name, param)
        return ApiError(
            self.status,
            message,
            param=param,
            code=self.code,
            headers=self.headers,
            extra=self.extra,
        )

    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = _TYPES.get(self.status, "internal_server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": {**error, **self.extra}}

    def response(self) -> Response:
        """The answer."""
        return Response(
            msgspec.json.encode(self.body()),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is wrong; `param` names the field."""
    return ApiError(400, message, param=param, code=code)


def refused(result: Result) -> ApiError:
    """Return the error that a body worker answered with."""
    if not isinstance(result, BodyRefusal):
        return ApiError(500, FAILED_SENTENCE)
    return ApiError(
        result.status,
        result.message,
        param=result.param,
        code=result.code,
        headers=result.headers,
        extra=result.extra,
    )


def from_engine(error: RequestRejectedError | EngineDeadError) -> ApiError:
    """Return the HTTP error for the core's refusal."""
    if isinstance(error, EngineDeadError):
        return ApiError(503, f"The engine has ended: {error}", code="engine_dead")
    code = {429: "queue_full", 503: "draining"}.get(error.status)
    headers = {}
    if error.status in (429, 503):
        headers["retry-after"] = str(error.retry_after or 1)
    return ApiError(error.status, str(error), param=error.param, code=code, headers=headers)
