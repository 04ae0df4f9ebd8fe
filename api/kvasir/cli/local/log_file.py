"""The log of a local fleet: every process's lines in one bounded file, prefixed by its name."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 64 * 1024 * 1024


class LogFile:
    """Append lines; at MAX_BYTES the file moves to PATH.1, so two files are kept at most."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._max_bytes = max_bytes
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._size = 0

    def write(self, name: str, line: str) -> None:
        """Add one line of the process `name`."""
        text = f"{name} | {line}\n"
        if self._size and self._size + len(text) > self._max_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = self.path.open("w", encoding="utf-8", buffering=1)
            self._size = 0
        self._file.write(text)
        self._size += len(text)

    def close(self) -> None:
        """End the file."""
        self._file.close()
