"""Errors of bodies that stand for a chat: those of the Responses and of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_SHOWN = 64


class InputError(ValueError):
    """A part of a body that cannot be shown to a model. `param` is its place in the body, `code`
    OpenAI's, if it has one."""

    def __init__(self, message: str, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def unsupported(message: str, param: str) -> InputError:
    """Return the error for what the protocol has and this server does not."""
    return InputError(message, param, "unsupported")


def shown(value: Any) -> str:
    """Return a value for a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def string_of(part: Mapping[str, Any], field: str, param: str) -> str:
    """Return a field of the part of a body at `param`. Raises InputError where it is no string."""
    value = part.get(field)
    if not isinstance(value, str):
        raise InputError(
            f"{param}.{field} must be a string, not {shown(value)}.", f"{param}.{field}"
        )
    return value
