"""Virtual time: a clock that jumps to whatever is due next.

No figure depends on how fast or busy the machine is, and the same seed gives the same figures.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar


class Watched(Protocol):
    """Work that goes on beside the load."""

    async def watch(self) -> None:
        """Forever."""


class Loaded(Protocol):
    """A load, and the router that it goes to."""

    @property
    def router(self) -> Watched:
        """Router that is watched while the load runs."""


LoadT = TypeVar("LoadT", bound=Loaded)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock jumps to whatever is due next."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.now += timeout or 0.0
        return super().select(0)


def run_virtual(
    work: Callable[[LoadT], Awaitable[Any]], make: Callable[[VirtualLoop], LoadT]
) -> Any:
    """Return what `work` gives with the load that `make` makes, in virtual time."""
    monotonic = time.monotonic

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        time.monotonic = loop.time
        load = make(loop)
        watching = loop.create_task(load.router.watch())
        try:
            return await work(load)
        finally:
            watching.cancel()
            time.monotonic = monotonic

    random.seed(1)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
