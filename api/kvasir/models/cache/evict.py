"""Remove models that nobody uses: old revisions, and others when there is no room."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable

from kvasir.models.cache.kept_kernels import remove_all, remove_former
from kvasir.models.cache.layout import MANIFEST, STAGING
from kvasir.models.cache.use_lock import is_held
from kvasir.models.cache.volume import Volume

logger = logging.getLogger(__name__)


def base_of(source: str) -> str:
    """A model's URI without revision, tag or digest: what its revisions have in common."""
    base = source.partition("@")[0]
    if source.startswith("oci://"):
        head, slash, name = base.rpartition("/")
        return head + slash + name.partition(":")[0]
    return base


class Evictor:
    """Remove models of one volume, never those called `protected` or held by an engine."""

    def __init__(self, volume: Volume, protected: Iterable[str]) -> None:
        self._volume = volume
        self._protected = frozenset(protected)

    def keep(self, name: str, count: int) -> list[str]:
        """Leave the `count` revisions of the model called `name` that were wanted last, itself
        among them, and no kernels of former images; return the directories of models that were
        removed."""
        remove_former(self._volume.root)
        models = self._volume.models()
        base = base_of(models[name].source)
        others = [n for n in self._by_age() if n != name and base_of(models[n].source) == base]
        surplus = len(others) + 1 - count
        return [n for n in others[: max(0, surplus)] if self._remove(n)]

    def make_room(self, missing: int) -> int:
        """Remove kernels, which are compiled again in seconds, then models, those wanted longest
        ago first, until `missing` bytes are free or none is left that may go; return the bytes that
        are still missing."""
        goal = self._volume.free_bytes() + missing
        self._remove_unfinished()
        for remove in (remove_former, remove_all):
            if self._volume.free_bytes() < goal:
                remove(self._volume.root)
        for name in self._by_age():
            if self._volume.free_bytes() >= goal:
                break
            self._remove(name)
        return max(0, goal - self._volume.free_bytes())

    def _by_age(self) -> list[str]:
        """Complete models, the one wanted longest ago first."""
        root = self._volume.root
        return sorted(
            self._volume.models(), key=lambda name: (root / name / MANIFEST).stat().st_mtime
        )

    def _remove(self, name: str) -> bool:
        directory = self._volume.directory(name)
        if name in self._protected:
            return False
        with self._volume.lock(name) as mine:
            if not mine or is_held(directory):
                return False
            # Renamed first: a model is whole or not there.
            aside = self._volume.staging(f"{name}.removed")
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            directory.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        logger.info("removed %s from the cache", name)
        return True

    def _remove_unfinished(self) -> None:
        """Remove abandoned staging directories."""
        staging = self._volume.root / STAGING
        for path in staging.iterdir() if staging.is_dir() else ():
            name = path.name.removesuffix(".removed")
            if name in self._protected:
                continue
            with self._volume.lock(name) as mine:
                if mine:
                    shutil.rmtree(path, ignore_errors=True)


def touch(volume: Volume, name: str) -> None:
    """Notes that the model called `name` is wanted now."""
    os.utime(volume.directory(name) / MANIFEST)
