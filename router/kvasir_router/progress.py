"""Work that has to go on: what takes no step and hears nothing for too long is found, and
cancelled. Time in which the process itself stood still does not count."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")

_TICK = 0.05
_PATIENCE = 0.3
"""Seconds that a step may come late."""
_LATE = 0.2
"""Seconds that a look may come late; beyond them it was the process that stood still."""


async def until_done(future: "asyncio.Future[Result]", every: float) -> Result:
    """Return the result of what ends by itself, as a thread does, going on `every` so many seconds
    meanwhile."""
    while not (await asyncio.wait({future}, timeout=every))[0]:
        pass
    return await future


class WorkProgress:
    """When some work last went on, and how long it may take until it does again."""

    def __init__(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().time
        self.at = self._clock()
        """Loop time."""
        self.seconds = seconds

    def went_on(self) -> None:
        """Note that it goes on now."""
        self.at = self._clock()

    def shorten(self, seconds: float) -> None:
        """Leave it so many seconds from now on, if it has more."""
        self.seconds = min(self.seconds, self._clock() - self.at + seconds)


class Steps:
    """Await some work; each step of it is progress."""

    def __init__(self, work: Awaitable[None], progress: WorkProgress) -> None:
        self._work = work
        self._progress = progress

    def __await__(self) -> Generator[Any, Any, None]:
        steps: Any = self._work.__await__()
        step: Callable[..., Any] = steps.__next__
        argument: tuple[BaseException, ...] = ()
        while True:
            self._progress.went_on()
            try:
                awaited = step(*argument)
            except StopIteration:
                return
            try:
                yield awaited
                step, argument = steps.__next__, ()
            except BaseException as error:
                step, argument = steps.throw, (error,)


class ProgressWatch:
    """Cancel work that does not go on for longer than it said."""

    def __init__(self) -> None:
        self._watched: dict[WorkProgress, asyncio.Timeout] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = 0.0
        self._woke = 0.0

    @property
    def awake_since(self) -> float:
        """time.monotonic() at which the process went on after it last stood still, as far as this
        was watched: it can have heard nothing in the time before."""
        now = time.monotonic()
        if self._timer is not None and now - self._looked - _TICK > _LATE:
            return now  # what waits to be read comes after whoever asks
        return self._woke

    async def run(self, work: Awaitable[None], seconds: float) -> None:
        """Run it. Raises TimeoutError when it takes no step for `seconds` and a moment more."""
        async with self.limit(seconds + _PATIENCE) as progress:
            await Steps(work, progress)

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[WorkProgress]:
        """Raise TimeoutError when what runs inside does not say for about `seconds`, through the
        progress, that it goes on."""
        try:
            async with asyncio.timeout(None) as limit:
                progress = WorkProgress(seconds)
                self._watched[progress] = limit
                if self._timer is None:
                    self._looked = progress.at
                    self._schedule()
                try:
                    yield progress
                finally:
                    del self._watched[progress]
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"it did not go on for {seconds:g} s") from error
            raise

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        late = now - self._looked - _TICK > _LATE
        self._looked = now
        if late:
            self._woke = now
        for progress, limit in self._watched.items():
            if late:
                progress.at = max(progress.at, now - _TICK)
            elif now - progress.at > progress.seconds and limit.when() is None:
                limit.reschedule(now)
        self._timer = None
        if self._watched:
            self._schedule()
