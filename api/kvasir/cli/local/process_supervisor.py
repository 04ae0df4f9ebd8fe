"""Keep the processes of a fleet running: all started at once, restarted when they die, stopped
in order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kvasir.cli.local.child_process import Child, ChildSpec
from kvasir.cli.local.local_fleet import Fleet
from kvasir.cli.local.probe import is_ready

MAX_RESTARTS = 5
RESTART_WINDOW = 60.0
"""More restarts than MAX_RESTARTS of one process within this many seconds end the fleet."""
_FIRST_BACKOFF = 0.25
_PROBE_INTERVAL = 0.05
SHOWN_LINES = 15

State = Literal["starting", "ready", "restarting", "stopping", "stopped"]


class FleetError(Exception):
    """A process cannot be kept running; the message has its name, the reason and its last lines."""


@dataclass(slots=True)
class Member:
    """One process of the fleet and its state."""

    spec: ChildSpec
    state: State = "starting"
    since: float = field(default_factory=time.monotonic)
    child: Child | None = None
    served: bool = False
    """True once it has been ready."""
    restarts: deque[float] = field(default_factory=deque)


class Supervisor:
    """Run a fleet until it is told to stop.

    `on_change(member)` is called at every change of state, `on_ready()` when all are ready for the
    first time, `on_exit(member, code)` when a process ends by itself, and `on_line(name, line)` for
    each line that one writes.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        on_change: Callable[[Member], None],
        on_ready: Callable[[], None],
        on_exit: Callable[[Member, int], None],
        on_line: Callable[[str, str], None],
    ) -> None:
        self.engines = [Member(spec) for spec in fleet.engines]
        self.router = Member(fleet.router)
        self._on_change = on_change
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._on_line = on_line
        self._announced = False
        self._stopping = asyncio.Event()

    @property
    def members(self) -> list[Member]:
        """Every process, the router last."""
        return [*self.engines, self.router]

    async def run(self, stop: asyncio.Event) -> None:
        """Start everything at once and keep it running until `stop` is set.

        No process is left when it returns. Raises FleetError.
        """
        tasks = [asyncio.create_task(self._keep(member)) for member in self.members]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopped.cancel()
            await self._stop_all(tasks)

    def kill(self) -> None:
        """End every process at once; `run` then returns."""
        for member in self.members:
            if member.child is not None:
                member.child.kill()

    async def _keep(self, member: Member) -> None:
        """Run one process, again and again until the fleet stops. Raises FleetError."""
        while not self._stopping.is_set():
            self._change(member, "starting")
            try:
                member.child = await Child.start(
                    member.spec, lambda line: self._on_line(member.spec.name, line)
                )
            except OSError as error:
                raise FleetError(f"{member.spec.name} cannot be started: {error}") from error
            if self._stopping.is_set():
                member.child.terminate()
            probe = asyncio.create_task(self._probe(member))
            try:
                code = await member.child.wait()
            finally:
                probe.cancel()
            if self._stopping.is_set():
                break
            self._on_exit(member, code)
            await self._back_off(member, code)
        self._change(member, "stopped")

    async def _back_off(self, member: Member, code: int) -> None:
        """Wait before the next start. Raises FleetError when there shall be none."""
        if not member.served:
            raise FleetError(_death(member, code, "before it was ready"))
        now = time.monotonic()
        while member.restarts and member.restarts[0] < now - RESTART_WINDOW:
            member.restarts.popleft()
        if len(member.restarts) >= MAX_RESTARTS:
            raise FleetError(_death(member, code, f"{MAX_RESTARTS + 1} times within a minute"))
        self._change(member, "restarting")
        await asyncio.sleep(_FIRST_BACKOFF * 2 ** len(member.restarts))
        member.restarts.append(now)

    async def _probe(self, member: Member) -> None:
        """Ask until the process answers that it is ready."""
        ready = False
        while not ready:
            await asyncio.sleep(_PROBE_INTERVAL)
            ready = await is_ready(member.spec.ready_url)
        self._serves(member)

    def _serves(self, member: Member) -> None:
        member.served = True
        self._change(member, "ready")
        if not self._announced and all(m.state == "ready" for m in self.members):
            self._announced = True
            self._on_ready()

    async def _stop_all(self, tasks: list[asyncio.Task[None]]) -> None:
        """The router first, so that what runs through it may end while its engines still serve."""
        self._stopping.set()
        *engines, router = tasks
        await self._stop([self.router], [router])
        await self._stop(self.engines, engines)

    async def _stop(self, members: list[Member], tasks: list[asyncio.Task[None]]) -> None:
        for member, task in zip(members, tasks, strict=True):
            if member.state == "restarting":
                task.cancel()
            elif not task.done():
                self._change(member, "stopping")
                if member.child is not None:
                    member.child.terminate()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _change(self, member: Member, state: State) -> None:
        member.state, member.since = state, time.monotonic()
        self._on_change(member)


def _death(member: Member, code: int, when: str) -> str:
    lines = list(member.child.tail)[-SHOWN_LINES:] if member.child else []
    how = f"was ended by signal {code - 128}" if code > 128 else f"exited with status {code}"
    text = f"{member.spec.name} {how} {when}"
    return (
        "\n".join([f"{text}; its last lines:", *(f"  {line}" for line in lines)]) if lines else text
    )
