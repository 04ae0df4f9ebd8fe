"""Errors as Anthropic's clients expect them: https://docs.anthropic.com/en/api/errors."""

from __future__ import annotations

from typing import Any

from kvasir_engine.server.openai.api_error import ApiError

PATH = "/v1/messages"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def has_messages_errors(path: str) -> bool:
    """Return whether a path is one of the Messages API's."""
    return path == PATH or path.startswith(f"{PATH}/")


def messages_error(error: ApiError) -> dict[str, Any]:
    """Return the error object."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    inner = {"type": _TYPES.get(error.status, kind), "message": error.message, **error.extra}
    return {"type": "error", "error": inner}
