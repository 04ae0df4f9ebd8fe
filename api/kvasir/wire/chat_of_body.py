"""The chat that a body of another protocol stands for: of the Responses or of the Messages API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ChatOfBody:
    """A chat, and where in the body its messages come from."""

    fields: dict[str, Any]
    """Those of a chat's body that decide its prompt."""
    origins: list[str]
    """Place in the body of each message."""
