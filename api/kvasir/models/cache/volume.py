"""A cache volume: complete models, those in the making, and who works on each."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kvasir.models.cache.layout import LOCKS, MANIFEST, STAGING
from kvasir.models.download_errors import DownloadError

MAX_MANIFEST_BYTES = 16 << 20
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a complete model."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a complete model's directory, and their source."""

    source: str
    revision: str | None
    files: tuple[FileEntry, ...]
    include: tuple[str, ...] = ()
    """Patterns of further files that were asked for."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(file.size for file in self.files if file.path.endswith(".safetensors"))


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of the model in `directory`; None when there is none that can be read."""
    file = directory / MANIFEST
    try:
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            return None
        body = json.loads(file.read_bytes())
        entries = tuple(FileEntry(e["path"], e["size"], e["sha256"]) for e in body["files"])
        include = tuple(body.get("include") or ())
        return Manifest(body["source"], body["revision"], entries, include)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Volume:
    """The directory that a cache volume is mounted at. Methods raise OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, name: str) -> Path:
        """Return the directory of the model called `name` when it is complete."""
        return self.root / name

    def staging(self, name: str) -> Path:
        """Return the directory in which the model called `name` is assembled until then."""
        return self.root / STAGING / name

    def complete(self, name: str, include: tuple[str, ...] = ()) -> Manifest | None:
        """The manifest of a model whose files, those of `include` among them, are all there with
        their sizes, else None."""
        directory = self.directory(name)
        manifest = read_manifest(directory)
        if manifest is None or not set(include) <= set(manifest.include):
            return None
        for file in manifest.files:
            try:
                if (directory / file.path).stat().st_size != file.size:
                    return None
            except OSError:
                return None
        return manifest

    def models(self) -> dict[str, Manifest]:
        """Every model directory's manifest, by its name."""
        found = {}
        for path in sorted(self.root.iterdir()):
            manifest = read_manifest(path) if path.is_dir() else None
            if manifest is not None:
                found[path.name] = manifest
        return found

    def free_bytes(self) -> int:
        """Bytes that can still be written."""
        return shutil.disk_usage(self.root).free

    def publish(self, name: str, files: Path, manifest: Manifest) -> None:
        """Make the directory `files` the complete model called `name`, in one step."""
        body = json.dumps(asdict(manifest), indent=1).encode()
        with (files / MANIFEST).open("wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
        sync_directory(files)
        files.rename(self.directory(name))
        sync_directory(self.root)
        shutil.rmtree(self.staging(name), ignore_errors=True)

    @contextmanager
    def lock(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
        """Hold the lock of one model, which ends with this process however it ends.

        `waiting` is called every half second while another has it; without `waiting`, False is
        yielded at once instead.
        """
        directory = self.root / LOCKS
        directory.mkdir(exist_ok=True)
        with (directory / f"{name}.lock").open("w") as file:
            while not _try_lock(file.fileno()):
                if waiting is None:
                    yield False
                    return
                waiting()
                time.sleep(_POLL_SECONDS)
            yield True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DownloadError(
            f"the volume does not support locks ({error.strerror}); use a file system that does,"
            " such as NFS 4 or a block device"
        ) from error
    return True


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
