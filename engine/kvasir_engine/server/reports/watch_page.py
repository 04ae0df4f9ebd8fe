"""Shared memory that tells all API processes whether anybody watches prompt reports."""

from __future__ import annotations

import mmap
from pathlib import Path

_PAGE_BYTES = 8


class WatchPage:
    """The number of the present watch, 0 = nobody watches. Only the first process writes it."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_PAGE_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _PAGE_BYTES)
        self._last = self.number

    @property
    def number(self) -> int:
        """The present watch."""
        return int.from_bytes(self._map[:_PAGE_BYTES], "little")

    def watch(self, watched: bool) -> None:
        """A watcher has come (True), or the last one has left."""
        self._last += watched
        number = self._last if watched else 0
        self._map[:_PAGE_BYTES] = number.to_bytes(_PAGE_BYTES, "little")
