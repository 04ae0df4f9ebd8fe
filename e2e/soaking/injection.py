"""Faults in the order of a schedule, one after the other or beside each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from soaking.cluster_faults import NotNowError
from soaking.report import Fault, Findings
from soaking.schedule import Schedule

NOT_NOW = "nothing to happen to"


class Injects(Protocol):
    """Something that has faults happen: `Faults` on a cluster."""

    def inject(self, name: str) -> None:
        """Return when it is over. Raises NotNowError where there is nothing to happen to."""

    def engines_ready(self) -> bool:
        """Return True if two engines serve: requests have somewhere to go."""


class Injection:
    """The faults of one run. `now` returns seconds of the run."""

    def __init__(
        self, faults: Injects, schedule: Schedule, findings: Findings, now: Callable[[], float]
    ) -> None:
        self._faults = faults
        self._schedule = schedule
        self._findings = findings
        self._now = now
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self, seconds: float, every: float) -> None:
        """Begin a fault `every` so many seconds, whether the one before is over or not; return when
        all are."""
        first = time.monotonic()
        end, due = first + seconds, first + every
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._one((due - first) / seconds)
            due += every
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        await asyncio.gather(*self._under_way.values())
        # Those that said late that there was nothing to happen to
        self._findings.faults = [e for e in self._findings.faults if e.error != NOT_NOW]

    async def _one(self, part: float) -> None:
        """Begin one fault: another one, where the first that is drawn has nothing to happen to."""
        ready = await asyncio.to_thread(self._faults.engines_ready)
        refused: set[str] = set()
        while True:
            busy = {name for name, task in self._under_way.items() if not task.done()} | refused
            try:
                kind = self._schedule.draw(part, busy, engines_ready=ready)
            except LookupError:
                self._findings.defects.append(f"no fault was possible at {part:.0%} of the run")
                return
            fault = Fault(kind.name, self._now())
            task = asyncio.create_task(self._inject(fault))
            # What has nothing to happen to says so at once
            done, _ = await asyncio.wait([task], timeout=5)
            if done and fault.error == NOT_NOW:
                refused.add(kind.name)
                continue
            self._findings.faults.append(fault)
            self._under_way[kind.name] = task
            return

    async def _inject(self, fault: Fault) -> None:
        try:
            await asyncio.to_thread(self._faults.inject, fault.name)
        except NotNowError:
            fault.error = NOT_NOW
        except Exception as error:
            fault.error = f"could not be injected: {error!r}"
        fault.ended = self._now()
        took = fault.ended - fault.began
        print(f"{fault.began:6.0f} s  {fault.name} ({took:.1f} s) {fault.error or ''}", flush=True)
