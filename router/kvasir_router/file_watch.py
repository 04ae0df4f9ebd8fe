"""Files that are read again when they change; what cannot be read leaves the last good content."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from watchfiles import awatch

from kvasir_router.progress import until_done

_ANYWAY_MILLISECONDS = 500
"""The files are looked at so often whether the system says that they changed or not: network file
systems say nothing."""
FOLLOW_SECONDS = 2.0
"""Maximum seconds without a step of who follows a file: changes are grouped for 1.6 s."""
_SLOW_SECONDS = 0.4
"""A file that is not read by then cannot be read, for now: its file system may hang."""
_FIRST_RETRY, _MAX_RETRY = 1.0, 30.0
"""Seconds until a file that could not be read is read again although it looks the same."""

logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of each change

_log = structlog.get_logger("kvasir_router.files")
Content = TypeVar("Content")


class FileWatch:
    """Say when one of `paths` has become another file, by its times, size and inode; also when
    another one is moved to its place, as editors and mounted Secrets do, or may be read by others
    than before."""

    def __init__(self, *paths: Path) -> None:
        self._paths = self._always = paths
        self._seen: list[tuple[int, ...] | None] | None = None

    def changed(self) -> bool:
        """Return True if a file changed since the last call; one that is gone has changed, too."""
        stamps = [_stamp(path) for path in self._paths]
        before, self._seen = self._seen, stamps
        return stamps != before

    def watch_too(self, paths: Iterable[Path]) -> None:
        """Look at these beside those that it was made for, in place of those before; what they are
        now has been seen."""
        wanted = (*self._always, *paths)
        if wanted != self._paths:
            seen = dict(zip(self._paths, self._seen or (), strict=False))
            self._seen = [seen[path] if path in seen else _stamp(path) for path in wanted]
            self._paths = wanted

    async def looks(self) -> AsyncIterator[None]:
        """Come round when something may have changed, and at least twice a second, for ever."""
        folders = {path.absolute().parent for path in self._paths}
        try:
            async for _ in _looks(folders, polling=False):
                yield
        except (OSError, RuntimeError) as error:
            # All of a user's processes on a machine share a small number of inotify instances
            _log.warning("files are polled: the system does not watch them", error=str(error))
        async for _ in _looks(folders, polling=True):
            yield


class FollowedFile(Generic[Content]):
    """Content of one or more files that belong together, read by `read` in a thread.

    `what` begins the messages in the log. `reported` is called after each attempt to read a changed
    file, with whether it was good; one that was not is tried again, ever later. The text of an
    error in `sentences` says what to correct; any other one is a defect, and harms as little.
    """

    def __init__(
        self,
        what: str,
        watch: FileWatch,
        read: Callable[[], Content],
        reported: Callable[[bool], None],
        sentences: tuple[type[Exception], ...],
    ) -> None:
        self._what = what
        self._watch = watch
        self._read = read
        self._reported = reported
        self._sentences = sentences
        self._said = ""
        """Last reason in the log why it cannot be used; empty while it can."""
        self._pause = _FIRST_RETRY
        self._retry_at = 0.0

    async def load(self) -> Content:
        """Read it now. Raises what `read` raises."""
        self._watch.changed()
        content = await asyncio.to_thread(self._read)
        self._is_good()
        return content

    def looks(self) -> AsyncIterator[None]:
        """Come round whenever it is time to `look`, for ever."""
        return self._watch.looks()

    async def follow(self, use: Callable[[Content], None]) -> None:
        """Give `use` the content whenever it has changed, for ever."""
        async for _ in self.looks():
            await self.look(use)

    async def look(self, use: Callable[[Content], None], *, force: bool = False) -> None:
        """Give `use` the content if it has changed; raises nothing."""
        again = force or bool(self._said and time.monotonic() >= self._retry_at)
        try:
            found = await self._when_read(again)
            if found is None:
                return
            use(found[0])
        except self._sentences as error:
            self._refused(str(error))
        except Exception as error:
            self._refused(repr(error), error)
        else:
            self._is_good()
            _log.info(f"{self._what} read")

    async def _when_read(self, again: bool) -> tuple[Content] | None:
        """Return the content if it is another one, or `again`. A thread that hangs is waited for:
        there is never a second one for the same file."""
        reading = asyncio.get_running_loop().run_in_executor(None, self._changed, again)
        done, _ = await asyncio.wait({reading}, timeout=_SLOW_SECONDS)
        if not done:
            self._refused(f"it could not be read within {_SLOW_SECONDS} s")
        return await until_done(reading, _SLOW_SECONDS)

    def _changed(self, again: bool) -> tuple[Content] | None:
        return (self._read(),) if self._watch.changed() or again else None

    def _is_good(self) -> None:
        self._said, self._pause = "", _FIRST_RETRY
        self._reported(True)

    def _refused(self, why: str, defect: Exception | None = None) -> None:
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _MAX_RETRY)
        if why != self._said:
            self._said, self._pause = why, _FIRST_RETRY
            text = f"{self._what} refused, the last good one stays"
            _log.error(text, error=why, exc_info=defect)
        self._reported(False)


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
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino, status.st_size
