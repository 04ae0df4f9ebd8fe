"""A router whose tasks fail when a file says so: python faulty_router.py FOLDER OPTIONS...

FOLDER/order holds a number, a kind of fault and a task's name. In each process, each task of this
name then raises, returns or hangs, whatever it awaits; FOLDER/told gets a line of JSON when it
does, and one when it runs again. A name of * is answered with the names there are, alone.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

from kvasir_router.command import app
from kvasir_router.tasks import SupervisedTasks

FOLDER = Path(sys.argv[1])
POLL_SECONDS = 0.02

Work = Callable[[], Awaitable[None]]
_live: dict[str, set["Faulty"]] = {}
_seen: set[tuple[int, int]] = set()
"""Processes and orders that have been carried out."""


class InjectedError(Exception):
    """Exception that a task is made to raise."""


class Faulty:
    """Some kept work, through all of its runs."""

    def __init__(self, name: str, work: Work, every: float | None) -> None:
        self.name = name
        self.every = every
        self._work = work
        self._order: tuple[int, str] | None = None
        self._failed: int | None = None
        """Number of the order after which it has not run again."""
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Run the work, until it ends or is made to."""
        self._task = asyncio.current_task()
        _live.setdefault(self.name, set()).add(self)
        self._tell_back()
        try:
            await self
        finally:
            _live[self.name].discard(self)

    def fail(self, number: int, kind: str) -> None:
        """Have it fail where it waits."""
        if self._task is not None and (kind != "hangs" or self.every is not None):
            self._order = number, kind
            self._task.cancel()

    def __await__(self) -> Generator[Any, Any, None]:
        steps: Any = self._work().__await__()
        step: Callable[..., Any] = steps.__next__
        argument: tuple[BaseException, ...] = ()
        returns = False
        while True:
            try:
                awaited = step(*argument)
            except StopIteration:
                return
            except asyncio.CancelledError:
                if returns:
                    return
                raise
            self._tell_back()
            try:
                yield awaited
                step, argument = steps.__next__, ()
            except BaseException as error:
                step, thrown = steps.throw, error
                if self._order is not None and isinstance(error, asyncio.CancelledError):
                    thrown = yield from self._begin(error)
                    returns = thrown is error
                argument = (thrown,)

    def _begin(self, error: BaseException) -> Generator[Any, Any, BaseException]:
        """Return what to throw into the work; the error itself if it is to return."""
        assert self._order is not None
        assert self._task is not None
        number, kind = self._order
        self._order = None
        self._task.uncancel()
        tell(order=number, name=self.name, task=id(self), failed=time.monotonic(), kind=kind)
        self._failed = number
        if kind == "raises":
            return InjectedError()
        if kind == "hangs":
            try:
                yield from asyncio.get_running_loop().create_future()
            except asyncio.CancelledError as cancelled:
                return cancelled
        return error

    def _tell_back(self) -> None:
        number, self._failed = self._failed, None
        if number is not None:
            tell(order=number, name=self.name, task=id(self), back=time.monotonic())


def tell(**facts: Any) -> None:
    """Add a line to what was told; of all processes."""
    line = json.dumps({"pid": os.getpid(), **facts}).encode() + b"\n"
    told = os.open(FOLDER / "told", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(told, line)
    os.close(told)


def look() -> None:
    """Carry out the order, if it is new."""
    asyncio.get_running_loop().call_later(POLL_SECONDS, look)
    try:
        number, kind, name = (FOLDER / "order").read_text().split(" ", 2)
    except (OSError, ValueError):
        return
    if (os.getpid(), int(number)) in _seen:
        return
    _seen.add((os.getpid(), int(number)))
    if name == "*":
        tell(order=int(number), names={each: _every(each) for each in _live})
    for each in list(_live.get(name, ())):
        each.fail(int(number), kind)


def _every(name: str) -> float | None:
    return next((each.every for each in _live[name]), None)


def install() -> None:
    """Have all kept tasks run as faulty ones."""
    keep, looks = SupervisedTasks.keep, set()

    def kept(
        self: SupervisedTasks, name: str, work: Work, *, every: float | None = None, **options: Any
    ) -> asyncio.Task[None]:
        if os.getpid() not in looks:
            looks.add(os.getpid())
            look()
        return keep(self, name, Faulty(name, work, every).run, every=every, **options)

    SupervisedTasks.keep = kept  # type: ignore[method-assign]


if __name__ == "__main__":
    install()
    app(args=sys.argv[2:], prog_name="kvasir router")
