"""Gets the files of a listing into a directory, in parallel, going on where it was interrupted."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Lock

from kvasir.models.cache.volume import FileEntry
from kvasir.models.download.file_hash import FileHash
from kvasir.models.download.tracker import Tracker
from kvasir.models.download_errors import DownloadError, PermanentError
from kvasir.models.sources.source import ModelSource, RemoteFile

logger = logging.getLogger(__name__)

JOURNAL = "finished.jsonl"
ATTEMPTS = 6
"""Requests for one file that bring nothing new before the download gives up."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class StoppedError(DownloadError):
    """Another file's download failed."""


class Fetcher:
    """Downloads files into `staging`/files; what is complete there is noted in a journal."""

    def __init__(
        self, source: ModelSource, staging: Path, tracker: Tracker, first_pause: float = FIRST_PAUSE
    ) -> None:
        self._source = source
        self._files = staging / "files"
        self._journal = staging / JOURNAL
        self._tracker = tracker
        self._first_pause = first_pause
        self._stop = Event()
        self._lock = Lock()
        self._finished = dict(_read_journal(self._journal))

    def staged_bytes(self, files: Sequence[RemoteFile]) -> int:
        """Bytes of `files` that are already here."""
        return sum(_size(self._files / file.path) for file in files)

    def fetch_all(self, files: Sequence[RemoteFile], parallel: int) -> list[FileEntry]:
        """Every file, complete and verified, in the order of `files`. Raises DownloadError."""
        pool = ThreadPoolExecutor(parallel, thread_name_prefix="download")
        tasks = [pool.submit(self._fetch, file) for file in files]
        try:
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        except BaseException:
            # Interrupted: a thread that waits for the network notices only much later.
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        self._stop.set()
        pool.shutdown()
        failures = [error for task in done if (error := task.exception()) is not None]
        for error in failures:
            if not isinstance(error, StoppedError):
                raise error
        return [task.result() for task in tasks]

    def _fetch(self, file: RemoteFile) -> FileEntry:
        target = self._files / file.path
        known = self._finished.get(identity(file))
        if known is not None and _size(target) == known.size:
            return known
        target.parent.mkdir(parents=True, exist_ok=True)
        pause, failures, most = self._first_pause, 0, _size(target)
        while True:
            try:
                return self._finish(file, self._transfer(file, target), target)
            except OSError as error:
                raise disk_error(error, target) from error
            except DownloadError as error:
                if error.permanent or self._stop.is_set():
                    raise
                size = _size(target)
                failures, pause = (failures + 1, pause) if size <= most else (1, self._first_pause)
                most = max(most, size)
                if failures >= ATTEMPTS:
                    raise DownloadError(f"{error} (asked {ATTEMPTS} times)") from error
                logger.warning("%s; asked again in %.0f s", error, pause)
            if self._stop.wait(pause):
                raise StoppedError("the download was stopped")
            pause = min(2 * pause, LONGEST_PAUSE)

    def _transfer(self, file: RemoteFile, target: Path) -> FileHash:
        """Append what is missing of `file`; return the hash of the whole."""
        hashed = FileHash(file.digest, file.size)
        start = _size(target)
        if not _can_go_on(file) or (file.size is not None and start > file.size):
            self._tracker.add(-start)
            # Not truncated: an engine may have the old content mapped.
            target.unlink(missing_ok=True)
            start = 0
        with target.open("ab" if start else "wb") as out:
            if start:
                hashed.update_from(target)
            if start != file.size:
                hashed = self._append(file, out.fileno(), hashed, start)
            os.fsync(out.fileno())
        return hashed

    def _append(self, file: RemoteFile, out: int, hashed: FileHash, start: int) -> FileHash:
        with self._source.read(file, start) as (begin, chunks):
            if begin != start:
                os.ftruncate(out, 0)
                self._tracker.add(-start)
                hashed, start = FileHash(file.digest, file.size), 0
            size = start
            for chunk in chunks:
                if self._stop.is_set():
                    raise StoppedError("the download was stopped")
                size += len(chunk)
                if file.size is not None and size > file.size:
                    os.ftruncate(out, 0)
                    self._tracker.add(len(chunk) - size)
                    raise DownloadError(f"{file.path}: the source sent more than {file.size} bytes")
                _write(out, chunk)
                hashed.update(chunk)
                self._tracker.add(len(chunk))
        if file.size is not None and size < file.size:
            raise DownloadError(
                f"{file.path}: the connection ended after {size} of {file.size} bytes"
            )
        return hashed

    def _finish(self, file: RemoteFile, hashed: FileHash, target: Path) -> FileEntry:
        size = _size(target)
        if not hashed.matches():
            target.unlink()
            self._tracker.add(-size)
            raise DownloadError(
                f"{file.path}: what was sent does not have the hash that the source states"
            )
        entry = FileEntry(file.path, size, hashed.sha256)
        line = json.dumps([identity(file), entry.path, entry.size, entry.sha256]) + "\n"
        with self._lock, self._journal.open("a") as journal:
            journal.write(line)
            journal.flush()
            os.fsync(journal.fileno())
        return entry


def identity(file: RemoteFile) -> str:
    """Name a file's content: a journal's entry of another content does not stand for it."""
    digest = file.digest.value if file.digest else file.version
    return f"{file.path} {file.size} {digest}"


def _can_go_on(file: RemoteFile) -> bool:
    """Return True if bytes of an earlier attempt are known to belong to the same content."""
    return file.size is not None and (file.digest is not None or file.version is not None)


def _read_journal(journal: Path) -> Iterator[tuple[str, FileEntry]]:
    try:
        lines = journal.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            identity, path, size, sha256 = json.loads(line)
        except ValueError:  # the last line of a process that was killed
            continue
        yield identity, FileEntry(path, size, sha256)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def disk_error(error: OSError, target: Path) -> DownloadError:
    """Return the error for a `target` that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PermanentError(
            f"the volume is full while {target.name} is written; enlarge it (spec.cache), or remove"
            " models from it"
        )
    return DownloadError(f"{target} cannot be written: {error.strerror or error}")
