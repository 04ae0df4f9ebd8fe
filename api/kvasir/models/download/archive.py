"""Unpack tar and zip archives: regular files that an engine reads, inside one directory."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.source import Selection, safe_path

_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Maximum files and bytes of an unpacked model; more is refused."""

    files: int = 4096
    bytes: int = 4 << 40


@dataclass(frozen=True, slots=True)
class _Member:
    path: str
    size: int
    is_link: bool
    content: IO[bytes] | None


def unpack(archive: Path, into: Path, selection: Selection, limits: ArchiveLimits) -> None:
    """Write the wanted files of `archive` below `into`. Raises PermanentError and OSError.

    A link is refused where a wanted file is one: what it points to may be outside.
    """
    count = size = 0
    try:
        for member in _members(archive):
            if not selection.takes(PurePosixPath(member.path).name):
                continue
            path = safe_path(member.path.removeprefix("./"))
            if member.is_link:
                raise PermanentError(
                    f"{archive.name} holds a link {path}; pack the files themselves"
                    " (tar --dereference)"
                )
            if member.content is None:
                continue
            count, size = count + 1, size + member.size
            check_limits(count, size, limits)
            _copy(member, into / path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError) as error:
        raise PermanentError(f"{archive.name} cannot be unpacked: {error}") from error


def check_limits(files: int, size: int, limits: ArchiveLimits) -> None:
    """Raise PermanentError when a model of `files` files and `size` bytes is more than allowed."""
    if files > limits.files:
        raise PermanentError(f"the model has more than {limits.files} files; is the URI right?")
    if size > limits.bytes:
        raise PermanentError(
            f"the model has more than {limits.bytes} bytes; is the URI right? --max-size raises"
            " the limit"
        )


def _copy(member: _Member, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    left = member.size
    with target.open("wb") as out:
        while left and (data := member.content.read(min(left, _COPY_BYTES))):  # type: ignore[union-attr]
            out.write(data)
            left -= len(data)
        if left or member.content.read(1):  # type: ignore[union-attr]
            raise PermanentError(f"{member.path} is not of the size that its archive states")


def _members(archive: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        yield from _zip_members(archive)
        return
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            is_link = member.issym() or member.islnk()
            yield _Member(member.name, member.size, is_link, content)


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if info.is_dir():
                continue
            is_link = stat.S_ISLNK(info.external_attr >> 16)
            with packed.open(info) as content:
                yield _Member(info.filename, info.file_size, is_link, content)
