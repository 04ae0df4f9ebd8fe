"""Files that are read again when they change."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
from watchfiles import awatch

_ANYWAY_MILLISECONDS = 1000
"""The files are looked at so often whether the system says that they changed or not: network file
systems say nothing."""

logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of each change

_log = structlog.get_logger("kvasir_router.files")


class FileWatch:
    """Say when one of `paths` has become another file, by its time, size and inode; also when
    another one is moved to its place, as editors and mounted Secrets do."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen: list[tuple[int, ...] | None] | None = None

    def changed(self) -> bool:
        """Return True if a file changed since the last call; one that is gone has changed, too."""
        stamps = [_stamp(path) for path in self._paths]
        before, self._seen = self._seen, stamps
        return stamps != before

    async def changes(self) -> AsyncIterator[None]:
        """Come round each time that `changed`, for ever."""
        folders = {path.absolute().parent for path in self._paths}
        try:
            async for _ in _looks(folders, polling=False):
                if self.changed():
                    yield
        except (OSError, RuntimeError) as error:
            # All of a user's processes on a machine share a small number of inotify instances
            _log.warning("files are polled: the system does not watch them", error=str(error))
        async for _ in _looks(folders, polling=True):
            if self.changed():
                yield


async def _looks(folders: set[Path], *, polling: bool) -> AsyncIterator[None]:
    async for _ in awatch(
        *folders,
        watch_filter=None,
        recursive=False,
        rust_timeout=_ANYWAY_MILLISECONDS,
        yield_on_timeout=True,
        force_polling=polling or None,
    ):
        yield


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
