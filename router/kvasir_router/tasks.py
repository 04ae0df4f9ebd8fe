"""The router's tasks: none ends without a word, and what has to run for ever is started again."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

import structlog

from kvasir_router.progress import ProgressWatch, WorkProgress

_FIRST_BACKOFF = 0.1
_MAX_BACKOFF = 0.8
"""A task runs again within a second of the end of what made it fail."""
_SETTLED_SECONDS = 60.0
"""A task that ran for so long before it failed is started again without delay, as a new one is."""
_QUIET_SECONDS = 5.0
"""A defect that comes again and again is in the log so often; all of its cases are counted."""

LOOP = "event loop"
"""Name of what fails in a callback that nobody answers for."""

_log = structlog.get_logger("kvasir_router.tasks")
_Result = TypeVar("_Result")


class EndedError(Exception):
    """A task that has to run for ever has ended without an exception."""


class SupervisedTasks:
    """The tasks of one owner, ended together. Those of a `child` count as its parent's in
    `failures` and `down`."""

    def __init__(self, parent: Self | None = None) -> None:
        self.failures: Counter[str] = Counter() if parent is None else parent.failures
        """Defects by name: tasks that raised, and what was caught elsewhere (`defect`)."""
        self.down: set[str] = set() if parent is None else parent.down
        """Names of required tasks that have failed and do not run yet: the process is not ready."""
        self._told: dict[str, tuple[float, int]] = {} if parent is None else parent._told
        """When the log last had a defect, and which number it was."""
        self._progress: ProgressWatch = ProgressWatch() if parent is None else parent._progress
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return how many tasks run."""
        return len(self._tasks)

    def child(self) -> "SupervisedTasks":
        """Return a group for another owner in the same process."""
        return SupervisedTasks(self)

    def run(self, name: str, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Start something that ends; the log has its exception."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        *,
        required: bool = False,
        every: float | None = None,
    ) -> asyncio.Task[None]:
        """Start something that runs for ever; it is started again, within a second, when it raises
        or returns. The process is not ready while a `required` one is down. One that goes on at
        least `every` so many seconds is also started again when it hangs."""
        return self.run(name, self._keep(name, work, required, every))

    def limit(self, seconds: float) -> AbstractAsyncContextManager[WorkProgress]:
        """Return `ProgressWatch.limit`: a time limit that does not count time in which this process
        stood still."""
        return self._progress.limit(seconds)

    def awake_since(self) -> float:
        """Return `ProgressWatch.awake_since`: when this process last went on."""
        return self._progress.awake_since

    async def stop(self) -> None:
        """Cancel all, and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def defect(self, name: str, error: BaseException, **facts: object) -> None:
        """Count a defect that was caught where it harms nothing else, and log it."""
        self.failures[name] += 1
        count, now = self.failures[name], time.monotonic()
        at, logged = self._told.get(name, (-_QUIET_SECONDS, 0))
        if now - at >= _QUIET_SECONDS:
            self._told[name] = now, count
            more = count - logged - 1
            if more:
                facts["unlogged"] = more
            _log.error("a defect", task=name, exc_info=error, **facts)

    def watch_loop(self) -> None:
        """Count and log what callbacks of the running loop raise, too."""
        asyncio.get_running_loop().set_exception_handler(self._unhandled)

    async def _keep(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        required: bool,
        every: float | None,
    ) -> None:
        loop, backoff = asyncio.get_running_loop(), _FIRST_BACKOFF
        while True:
            began = loop.time()
            try:
                await _run_for_ever(work if every is None else self._watched(work, every))
            except Exception as error:
                if loop.time() - began > _SETTLED_SECONDS:
                    backoff = _FIRST_BACKOFF
                self.defect(name, error, again_in_seconds=backoff)
            if required:
                self.down.add(name)
            try:
                await asyncio.sleep(backoff)
            finally:
                self.down.discard(name)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _watched(
        self, work: Callable[[], Awaitable[None]], every: float
    ) -> Callable[[], Awaitable[None]]:
        return lambda: self._progress.run(work(), every)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.defect(task.get_name(), error)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError):  # a socket's trouble is no defect
            _log.warning("the event loop reports", message=context["message"], error=repr(error))
        else:
            self.defect(LOOP, error, message=context["message"])


async def _run_for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Raise EndedError when it returns, or is cancelled by others than its own task's owner."""
    try:
        await work()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EndedError("it was cancelled from within") from error
    raise EndedError("it returned")
