"""Tasks that have to go on: one whose await never comes back is found, and cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")

_TICK = 0.1
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


class Steps:
    """Await some work, and know when it last went on."""

    def __init__(self, work: Awaitable[None]) -> None:
        self._work = work
        self.at = 0.0
        """Loop time of the last step."""

    def __await__(self) -> Generator[Any, Any, None]:
        clock = asyncio.get_running_loop().time
        steps: Any = self._work.__await__()
        step: Callable[..., Any] = steps.__next__
        argument: tuple[BaseException, ...] = ()
        while True:
            self.at = clock()
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
    """Cancel the work of tasks that take no step for longer than they said."""

    def __init__(self) -> None:
        self._watched: dict[Steps, tuple[float, asyncio.Timeout]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = 0.0

    async def run(self, work: Awaitable[None], seconds: float) -> None:
        """Run it. Raises TimeoutError when it takes no step for `seconds` and a moment more."""
        steps = Steps(work)
        try:
            async with asyncio.timeout(None) as limit:
                self._watched[steps] = seconds + _PATIENCE, limit
                if self._timer is None:
                    self._looked = asyncio.get_running_loop().time()
                    self._schedule()
                await steps
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"it took no step for {seconds + _PATIENCE:g} s") from error
            raise
        finally:
            del self._watched[steps]

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        late = now - self._looked - _TICK > _LATE
        self._looked = now
        for steps, (seconds, limit) in self._watched.items():
            if late:
                steps.at = max(steps.at, now - _TICK)
            elif now - steps.at > seconds and limit.when() is None:
                limit.reschedule(now)
        self._timer = None
        if self._watched:
            self._schedule()
