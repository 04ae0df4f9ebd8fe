"""Errors of the Messages API."""

from __future__ import annotations

from typing import Any

from kvasir.anthropic_error import anthropic_error
from kvasir_engine.server.openai.api_error import ApiError

PATH = "/v1/messages"


def has_messages_errors(path: str) -> bool:
    """Return whether a path is one of the Messages API's."""
    return path == PATH or path.startswith(f"{PATH}/")


def messages_error(error: ApiError) -> dict[str, Any]:
    """Return the error object."""
    return anthropic_error(error.status, error.message, error.extra)
