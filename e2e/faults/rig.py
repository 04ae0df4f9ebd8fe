"""Rig that every fault works on, and the row it reports."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.load import Answer, Load
from faults.processes import MODEL, BadEngine, Router, SimEngine

ENGINES = 3
CLIENTS = 12


@dataclass
class Row:
    """Line of one fault in the table; None = does not apply."""

    fault: str
    requests: int = 0
    lost: int = 0
    detected: float | None = None
    """Seconds until the router knew."""
    recovered: float | None = None
    """Seconds until it served as before, without what is gone."""
    note: str = ""
    failed: list[str] = field(default_factory=list)
    """Conditions that did not hold."""
    late: list[str] = field(default_factory=list)
    """Events that took longer than they may. They count only on a quiet machine: --times."""

    def count(self, answers: Iterable[Answer]) -> None:
        """All of them, and those that are not whole: they are lost."""
        problems = Counter("" if answer.is_good else answer.problem for answer in answers)
        self.requests = problems.total()
        self.lost = self.requests - problems.pop("", 0)
        for problem, number in problems.items():
            self.failed.append(f"{number} x {problem or 'cut off'}")

    def expect(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.failed.append(what)

    def within(self, seconds: float | None, limit: float, what: str) -> None:
        """Note what took longer, or never happened."""
        if seconds is None or seconds > limit:
            took = "never" if seconds is None else f"after {seconds:.3g} s"
            self.late.append(f"{what} {took}, not within {limit:g} s")

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.failed


class Rig:
    """Three simulated engines behind a router, and more for a while."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.engines = [SimEngine(f"r{number}", folder) for number in range(ENGINES)]
        self.router = Router(folder, ["--hold-timeout", "8", "--header-timeout", "5"])
        self._more: list[dict[str, Any]] = []
        self._started: list[BadEngine] = []

    async def start(self) -> None:
        """Return when all are ready."""
        await asyncio.gather(*(engine.start() for engine in self.engines))
        await self.router.start(self.models())
        await self.all_ready()

    async def all_ready(self) -> float:
        """Return the time at which all three engines are ready, by the monotonic clock."""
        return await self.router.until({engine.name: "ready" for engine in self.engines})

    async def revived(self, engine: SimEngine) -> float:
        """Start it again; returns how long after it serves the router knows, and all are ready."""
        await engine.start()
        known = asyncio.create_task(self.router.until({engine.name: "ready"}))
        await engine.wait_ready()
        serves = time.monotonic()
        seconds = max(0.0, await known - serves)
        await self.all_ready()
        return seconds

    async def stop(self) -> None:
        for process in (self.router, *self.engines, *self._started):
            await process.kill()

    def load(
        self, clients: int = CLIENTS, model: str = MODEL, *lines: str, port: int | None = None
    ) -> Load:
        """Begin to ask; another router than the rig's by its port."""
        return Load(port or self.router.port, clients, model, lines)

    async def settle(self, load: Load) -> float:
        """Good answers a second of a load that nothing disturbs."""
        await asyncio.sleep(2)
        now = time.monotonic()
        return load.rate(now - 1.5, now)

    async def add(self, name: str, *engines: BadEngine, policy: str = "round_robin") -> None:
        """A model of faulty engines, ready to be asked."""
        for engine in engines:
            self._started.append(engine)
            engine.served_name = name
            await engine.start()
        await self.add_entries(name, [engine.entry for engine in engines], policy)

    async def add_entries(
        self, name: str, entries: list[dict[str, Any]], policy: str = "round_robin"
    ) -> None:
        """A model of these replicas."""
        self._more.append({"name": name, "policy": policy, "replicas": entries})
        self.router.configure(self.models())
        await self.router.until({entry["id"]: "ready" for entry in entries}, name)

    def models(self) -> list[dict[str, Any]]:
        """Models as the router is told of them when nothing is wrong."""
        replicas = [engine.entry for engine in self.engines]
        return [{"name": MODEL, "replicas": replicas}, *self._more]


def table(rows: list[Row]) -> str:
    """Return the table of the rows, for people."""
    lines = [f"{'fault':44} {'requests':>8} {'lost':>5} {'detected':>9} {'recovered':>9}"]
    for row in rows:
        mark = "" if row.is_good else "  FAILED " + "; ".join(row.failed)
        mark += "  LATE " + "; ".join(row.late) if row.late else ""
        note = f"  {row.note}" if row.note else ""
        times = f"{_seconds(row.detected):>9} {_seconds(row.recovered):>9}"
        lines.append(f"{row.fault:44} {row.requests:8} {row.lost:5} {times}{note}{mark}")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"
