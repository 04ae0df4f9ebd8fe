"""Errors as Anthropic's clients expect them: https://docs.anthropic.com/en/api/errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(
    status: int, message: str, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the error object; `extra` are further fields of the inner one."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message, **(extra or {})}}
