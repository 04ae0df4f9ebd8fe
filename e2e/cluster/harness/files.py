"""Content hashes and files that are there whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_IGNORED = {"__pycache__", ".mypy_cache", ".ruff_cache"}


def content_hash(paths: Iterable[Path], root: Path, *more: str) -> str:
    """16 hex digits of the names (relative to `root`) and contents of files and directories."""
    digest = hashlib.sha256()
    for path in sorted(set(_files(paths))):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    for text in more:
        digest.update(f"\0{text}".encode())
    return digest.hexdigest()[:16]


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            for child in path.rglob("*"):
                if child.is_file() and not _IGNORED.intersection(child.parts):
                    yield child
        else:
            yield path
