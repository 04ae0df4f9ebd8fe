"""Hashes of a file while its bytes go by."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kvasir.models.sources.source import Digest

_READ_BYTES = 4 << 20


class FileHash:
    """The SHA-256 of a file, and the hash that its source states, fed in order."""

    def __init__(self, digest: Digest | None, size: int | None) -> None:
        self._digest = digest
        self._sha256 = hashlib.sha256()
        self._own = _Stated(digest, size) if digest and digest.kind != "sha256" else None

    def update(self, data: bytes) -> None:
        """The next bytes."""
        self._sha256.update(data)
        if self._own is not None:
            self._own.update(data)

    def update_from(self, file: Path) -> int:
        """All the bytes of `file`; returns how many."""
        size = 0
        with file.open("rb") as source:
            while data := source.read(_READ_BYTES):
                self.update(data)
                size += len(data)
        return size

    @property
    def sha256(self) -> str:
        """SHA-256 of all the bytes so far, in hex."""
        return self._sha256.hexdigest()

    def matches(self) -> bool:
        """True when the bytes are what the source states, or it states nothing."""
        if self._digest is None:
            return True
        stated = self._own.value() if self._own is not None else self.sha256
        return stated == self._digest.value


class _Stated:
    """A hash of another kind than SHA-256; MD5 and SHA-1 guard against damage, not malice."""

    def __init__(self, digest: Digest, size: int | None) -> None:
        self._part_bytes = digest.part_bytes
        self._parts: list[bytes] = []
        self._left = digest.part_bytes
        self._hash = hashlib.md5(usedforsecurity=False)
        if digest.kind == "git":
            self._hash = hashlib.sha1(b"blob %d\0" % (size or 0), usedforsecurity=False)

    def update(self, data: bytes) -> None:
        while self._part_bytes and len(data) >= self._left:
            self._hash.update(data[: self._left])
            data, self._left = data[self._left :], self._part_bytes
            self._parts.append(self._hash.digest())
            self._hash = hashlib.md5(usedforsecurity=False)
        self._hash.update(data)
        self._left -= len(data)

    def value(self) -> str:
        if not self._part_bytes:
            return self._hash.hexdigest()
        parts = list(self._parts)
        if self._left < self._part_bytes:
            parts.append(self._hash.digest())
        whole = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
        return f"{whole}-{len(parts)}"
