"""Interface of a source: a list of files, and the bytes of each from any offset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol

from kvasir.models.download_errors import PermanentError
from kvasir.models.hub_files import is_wanted

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
MAX_PATH_CHARS = 512
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Digest:
    """A hash that a file must have, as its source states it."""

    kind: Literal["sha256", "git", "md5", "md5-parts"]
    """git: SHA-1 of a blob; md5-parts: S3's ETag of an upload in parts."""
    value: str
    part_bytes: int = 0
    """md5-parts: size of every part but the last."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model, or an archive of several."""

    path: str
    """Path of the file, relative to the model's directory."""
    size: int | None
    """Bytes; None where the source does not say."""
    address: str
    """Address of the file at the source, in the source's own form."""
    digest: Digest | None = None
    version: str | None = None
    """Name this content at the source; a download goes on only while it stands."""
    archive: bool = False
    """True if the file is an archive that is unpacked into the model's directory."""

    @property
    def in_place(self) -> bool:
        """True when it is a file of the model's directory as it is."""
        return not self.archive and "/" not in self.path


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a model at its source."""

    files: tuple[RemoteFile, ...]
    revision: str | None = None
    """Commit or digest of the whole, where the source has one."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of the source's files to download."""

    include: tuple[str, ...] = ()
    """Patterns of further files than those every engine reads."""
    adapter: bool = False
    """It is a LoRA adapter, not a model."""

    @property
    def config_file(self) -> str:
        """Name of the file without which the directory is nothing that an engine loads."""
        return "adapter_config.json" if self.adapter else "config.json"

    def takes(self, path: str) -> bool:
        """True when the file at `path`, relative to the model's directory, is downloaded."""
        return is_wanted(path, self.include)


class ModelSource(Protocol):
    """A place that holds one model. Methods raise DownloadError; `read` is called by many threads
    at once."""

    def list(self) -> Listing:
        """The files to download."""
        ...

    def read(
        self, file: RemoteFile, start: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """The offset from which bytes come (`start`, or 0 where the source cannot begin there) and
        the bytes."""
        ...

    def close(self) -> None:
        """Close its connections."""
        ...


def safe_path(path: str) -> str:
    """`path` in its normal form, when it stays inside the directory it is relative to.

    Raises PermanentError.
    """
    parts = PurePosixPath(path).parts
    unsafe = (
        not parts
        or path.startswith("/")
        or ".." in parts
        or "\\" in path
        or not path.isprintable()
        or len(path) > MAX_PATH_CHARS
        or any(len(part.encode()) > MAX_NAME_BYTES for part in parts)
    )
    if unsafe:
        raise PermanentError(
            f"the source names a file {path[:100]!r}, which does not stay inside the model's"
            " directory or is no usable file name"
        )
    return str(PurePosixPath(*parts))


def is_archive(path: str) -> bool:
    """True when the name `path` says that it is an archive that can be unpacked."""
    return path.lower().endswith(ARCHIVE_SUFFIXES)
