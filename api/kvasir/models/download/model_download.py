"""Download of one model into a cache volume: listed, fetched, unpacked, checked, renamed into
place."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from kvasir.atomic_files import write_atomic
from kvasir.model_uri import ModelURI
from kvasir.models.cache.evict import Evictor, touch
from kvasir.models.cache.layout import model_directory
from kvasir.models.cache.volume import FileEntry, Manifest, Volume
from kvasir.models.download.archive import ArchiveLimits, check_limits, unpack
from kvasir.models.download.fetch import (
    ATTEMPTS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Fetcher,
    disk_error,
    identity,
)
from kvasir.models.download.file_hash import FileHash
from kvasir.models.download.model_contents import check_model, promote_root
from kvasir.models.download.progress import DownloadPhase, Progress, sizing_config
from kvasir.models.download.tracker import Tracker
from kvasir.models.download_errors import DownloadError, PermanentError
from kvasir.models.hf_config import ConfigError, load_config
from kvasir.models.sources import open_source
from kvasir.models.sources.source import Listing, ModelSource, RemoteFile, Selection
from kvasir.quantity import format_bytes

logger = logging.getLogger(__name__)

MARGIN_BYTES = 16 << 20
"""Left free: journals, directories, what others write meanwhile."""
_LISTING = "listing.json"


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """Options of one model's download."""

    selection: Selection = field(default_factory=Selection)
    limits: ArchiveLimits = field(default_factory=ArchiveLimits)
    parallel: int = 8
    """Files at once."""
    keep: int | None = None
    """Revisions of the model that stay, itself among them; None = all."""
    evict: bool = False
    """Others' models go, the longest unwanted first, when there is no room."""
    in_use: tuple[ModelURI, ...] = ()
    """Models that stay whatever happens."""
    first_pause: float = FIRST_PAUSE
    """Seconds before the second attempt; each later one waits twice as long."""


class Download:
    """Bring the model at `uri` into the volume at `root`, unless it is there."""

    def __init__(
        self,
        uri: ModelURI,
        revision: str | None,
        root: Path,
        tracker: Tracker,
        options: DownloadOptions | None = None,
    ) -> None:
        self._uri = uri
        self._revision = uri.revision or revision
        self._tracker = tracker
        self._options = options or DownloadOptions()
        self._volume = Volume(root)
        self._name = model_directory(uri, revision)
        protected = (model_directory(other) for other in self._options.in_use)
        self._evictor = Evictor(self._volume, (self._name, *protected))

    def run(self) -> Path:
        """The model's directory, complete; the tracker then says DownloadPhase.DONE.

        Raises DownloadError. Whatever ends it, the next one goes on where it was.
        """
        directory, include = self._volume.directory(self._name), self._options.selection.include
        try:
            if self._uri.scheme == "pvc":
                size = _check_claim(directory, str(self._uri), self._options.selection)
                self._tracker.end(_done(directory, size, size, self._options.selection))
                return directory
            self._volume.root.mkdir(parents=True, exist_ok=True)
            with self._volume.lock(self._name, self._watch):
                manifest = self._volume.complete(self._name, include) or self._make()
                touch(self._volume, self._name)
            if self._options.keep is not None:
                self._evictor.keep(self._name, self._options.keep)
        except OSError as error:
            raise disk_error(error, self._volume.root) from error
        sizes = manifest.size, manifest.weight_bytes
        self._tracker.end(_done(directory, *sizes, self._options.selection))
        return directory

    def _make(self) -> Manifest:
        selection, staging = self._options.selection, self._volume.staging(self._name)
        with closing(open_source(self._uri, self._revision, selection)) as source:
            listing = self._list(source)
            sizes = [file.size or 0 for file in listing.files]
            check_limits(len(sizes), sum(sizes), self._options.limits)
            self._prepare(staging, listing.files)
            _forget_others(staging, listing.files)
            entries = self._fetch(source, listing, staging)
        self._tracker.verify()
        files = staging / "files"
        if not all(file.in_place for file in listing.files):
            files = staging / "unpacked"
            entries = self._unpack(listing, staging, files)
        check_model(files, str(self._uri), selection)
        manifest = Manifest(self._source_name, listing.revision, tuple(entries), selection.include)
        self._volume.publish(self._name, files, manifest)
        return manifest

    def _list(self, source: ModelSource) -> Listing:
        pause = self._options.first_pause
        for _ in range(ATTEMPTS - 1):
            try:
                return source.list()
            except DownloadError as error:
                if error.permanent:
                    raise
                logger.warning("%s; asked again in %.0f s", error, pause)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return source.list()

    @property
    def _source_name(self) -> str:
        if self._uri.scheme == "hf" and self._revision:
            return f"hf://{self._uri.name}@{self._revision}"
        return str(self._uri)

    def _fetch(self, source: ModelSource, listing: Listing, staging: Path) -> list[FileEntry]:
        fetcher = Fetcher(source, staging, self._tracker, self._options.first_pause)
        done = fetcher.staged_bytes(listing.files)
        total = sum(file.size or 0 for file in listing.files)
        packed = sum(file.size or 0 for file in listing.files if file.archive)
        self._make_room(total + packed - done, total)
        self._tracker.begin(done, total)
        return fetcher.fetch_all(listing.files, self._options.parallel)

    def _make_room(self, needed: int, total: int) -> None:
        """Raise PermanentError when `needed` bytes do not fit on the volume."""
        missing = needed + MARGIN_BYTES - self._volume.free_bytes()
        if missing > 0 and self._options.evict:
            missing = self._evictor.make_room(missing)
        if missing > 0:
            raise PermanentError(
                f"{self._uri} has {format_bytes(total)}, but {self._volume.root} lacks"
                f" {format_bytes(missing)} for it; enlarge the volume (spec.cache) by that much, or"
                " remove models from it"
            )

    def _unpack(self, listing: Listing, staging: Path, files: Path) -> list[FileEntry]:
        """Unpack the archives and put the other files beside what was in them."""
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir()
        for file in listing.files:
            fetched = staging / "files" / file.path
            if file.archive:
                unpack(fetched, files, self._options.selection, self._options.limits)
            else:
                target = files / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                fetched.rename(target)
        promote_root(files, self._options.selection.config_file)
        return [_hashed(path) for path in sorted(files.iterdir())]

    def _prepare(self, staging: Path, files: Sequence[RemoteFile]) -> None:
        """Make `staging`. A model that is not whole, or lacks files that are asked for now, gives
        up its files to it, in one step as well: they are hashed again, not downloaded again."""
        staging.mkdir(parents=True, exist_ok=True)
        directory = self._volume.directory(self._name)
        if directory.exists():
            shutil.rmtree(staging / "files", ignore_errors=True)
            directory.rename(staging / "files")
            known = {identity(file): file.size or 0 for file in files if file.digest}
            write_atomic(staging / _LISTING, json.dumps(known).encode())
        (staging / "files").mkdir(exist_ok=True)

    def _watch(self) -> None:
        """Another process downloads this model: tells what it has so far."""
        staging = self._volume.staging(self._name)
        try:
            listed = json.loads((staging / _LISTING).read_bytes())
            done = sum(path.stat().st_size for path in (staging / "files").rglob("*"))
        except (OSError, ValueError):
            return
        self._tracker.end(Progress(DownloadPhase.DOWNLOADING, done, sum(listed.values())))


def _forget_others(staging: Path, files: Sequence[RemoteFile]) -> None:
    """Remove what earlier attempts fetched of other content, so that nothing is mixed."""
    record = staging / _LISTING
    try:
        before = json.loads(record.read_bytes())
    except (OSError, ValueError):
        before = {}
    wanted = {file.path: identity(file) for file in files}
    for path in (staging / "files").rglob("*"):
        name = str(path.relative_to(staging / "files"))
        if path.is_file() and (name not in wanted or wanted[name] not in before):
            path.unlink()
    sizes = {identity(file): file.size or 0 for file in files}
    write_atomic(record, json.dumps(sizes).encode())


def _check_claim(directory: Path, what: str, selection: Selection) -> int:
    """Bytes of the weights in a claim's `directory`. Raises PermanentError."""
    if not directory.is_dir():
        raise PermanentError(f"{what}: the claim has no directory {directory.name}; check the path")
    check_model(directory, what, selection)
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _done(directory: Path, size: int, weight_bytes: int, selection: Selection) -> Progress:
    if selection.adapter:
        return Progress(DownloadPhase.DONE, size, size, 0)
    try:
        config = sizing_config(load_config(directory))
    except ConfigError as error:
        raise PermanentError(str(error)) from error
    return Progress(DownloadPhase.DONE, size, size, 0, config=config, weight_bytes=weight_bytes)


def _hashed(file: Path) -> FileEntry:
    digest = FileHash(None, None)
    size = digest.update_from(file)
    with file.open("rb") as written:
        os.fsync(written.fileno())
    return FileEntry(file.name, size, digest.sha256)
