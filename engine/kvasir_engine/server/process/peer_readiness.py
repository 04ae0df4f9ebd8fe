"""Readiness of all API processes: /ready answers 200 only when every one of them serves.

They share a port: a client that was told "ready" by one may reach any other one next.
"""

from __future__ import annotations

from pathlib import Path


class PeerReadiness:
    """A file for each process in the runtime directory that they share."""

    def __init__(self, directory: Path, index: int, count: int) -> None:
        self._files = [directory / f"serving-{each}" for each in range(count)]
        self._index = index
        self._complete = False

    def mark_ready(self) -> None:
        """This process serves."""
        self._files[self._index].touch()

    @property
    def all_ready(self) -> bool:
        """True once every peer has been heard; it stays so."""
        if not self._complete:
            self._complete = all(file.exists() for file in self._files)
        return self._complete
