"""Shared memory by which all API processes know that a GPU has failed."""

from __future__ import annotations

import mmap
from pathlib import Path

_PAGE_BYTES = 512


class FaultPage:
    """Sentence on the fault; empty = there is none. Only the supervisor writes it, once."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_PAGE_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _PAGE_BYTES)

    @property
    def is_set(self) -> bool:
        """Return whether a GPU has failed: it costs one byte's read."""
        return self._map[0] != 0

    @property
    def reason(self) -> str:
        """Return the sentence."""
        return self._map[1:].rstrip(b"\0").decode(errors="ignore") if self.is_set else ""

    def write(self, reason: str) -> None:
        """Note the fault; what is too long is cut."""
        text = reason.replace("\0", " ").encode()[: _PAGE_BYTES - 1]
        self._map[1 : 1 + len(text)] = text
        self._map[0] = 1  # last: whoever sees it finds the text
