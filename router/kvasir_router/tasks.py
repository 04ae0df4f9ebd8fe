"""The router's tasks: none ends without a word, and what has to run for ever is started again."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

import structlog

_FIRST_BACKOFF = 0.1
_MAX_BACKOFF = 10.0
_SETTLED_SECONDS = 60.0
"""A task that ran for so long before it failed is started again without delay, as a new one is."""

_log = structlog.get_logger("kvasir_router.tasks")
_Result = TypeVar("_Result")


class SupervisedTasks:
    """The tasks of one owner, ended together. Those of a `child` count as its parent's in
    `failures` and `down`."""

    def __init__(self, parent: Self | None = None) -> None:
        self.failures: Counter[str] = Counter() if parent is None else parent.failures
        """Tasks that raised, by name."""
        self.down: set[str] = set() if parent is None else parent.down
        """Names of required tasks that have failed and do not run yet: the process is not ready."""
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
        self, name: str, work: Callable[[], Awaitable[None]], *, required: bool = False
    ) -> asyncio.Task[None]:
        """Start something that runs for ever; it is started again after an exception, ever later.
        The process is not ready while a `required` one is down."""
        return self.run(name, self._keep(name, work, required))

    async def stop(self) -> None:
        """Cancel all, and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]], required: bool) -> None:
        loop, backoff = asyncio.get_running_loop(), _FIRST_BACKOFF
        while True:
            began = loop.time()
            try:
                await work()
                return
            except Exception:
                self.failures[name] += 1
                if loop.time() - began > _SETTLED_SECONDS:
                    backoff = _FIRST_BACKOFF
                _log.exception("a task failed, and is started again", task=name, seconds=backoff)
            if required:
                self.down.add(name)
            try:
                await asyncio.sleep(backoff)
            finally:
                self.down.discard(name)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failures[task.get_name()] += 1
            _log.error("a task failed", task=task.get_name(), exc_info=error)
