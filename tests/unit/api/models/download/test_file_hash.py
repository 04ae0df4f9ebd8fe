"""Hashes as git and S3 make them."""

from __future__ import annotations

import hashlib

import pytest

from kvasir.models.download.file_hash import FileHash
from kvasir.models.sources.source import Digest

CONTENT = bytes(range(256)) * 40


def etag(content: bytes, part: int) -> str:
    """S3's, of an upload in parts."""
    parts = [content[at : at + part] for at in range(0, len(content), part)]
    joined = b"".join(hashlib.md5(each).digest() for each in parts)
    return f"{hashlib.md5(joined).hexdigest()}-{len(parts)}"


DIGESTS = [
    Digest("sha256", hashlib.sha256(CONTENT).hexdigest()),
    Digest("md5", hashlib.md5(CONTENT).hexdigest()),
    Digest("git", hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()),
    *(Digest("md5-parts", etag(CONTENT, part), part) for part in (1000, 1024, 10_240, 20_000)),
]


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("step", [1, 999, 1000, 100_000])
def test_each_kind_however_the_bytes_come(digest: Digest, step: int) -> None:
    right, wrong = FileHash(digest, len(CONTENT)), FileHash(digest, len(CONTENT))
    for at in range(0, len(CONTENT), step):
        right.update(CONTENT[at : at + step])
        wrong.update(CONTENT[at : at + step])
    assert right.matches()
    assert right.sha256 == hashlib.sha256(CONTENT).hexdigest()
    wrong.update(b"!")
    assert not wrong.matches()
