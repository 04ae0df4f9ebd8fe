"""Attacks on a router and an engine, beside a well-behaved client: python e2e/attack_suite.py

Slow clients (slowhttptest), floods (h2load), request smuggling, bodies that are larger to read
than to send, and mutated bodies, each against a router of one worker, of two, and an engine's own
server. Beside each of them a client asks as usual: it may lose nothing, and its p99 may grow by
50 ms over what it was without an attack; memory is to be within 10 % of what it was, once they are
over. Prints a table; the exit status is 1 when anything does not hold. All traffic stays on
loopback.

--seconds: of mutated bodies, a fifth of them on the engine (default 30; 600 are to make a million
where nothing else runs); from 120 on, the other attacks last longer, too. --save FILE writes the
rows as JSON, with the date, the commit and the command. With --times or --save, beside each p99
stands the client's beside processes that take as much CPU time as the attack, its target and what
is behind that: what is contention.
Without --times, as on a machine that does other work, an attack may raise the p99 by a second: more
means that it stood still.
"""

import argparse
import asyncio
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attacks import floods, slow_http, smuggling
from attacks.report import MAX_MEMORY_GROWTH, Row, percentile, save, table
from attacks.targets import RouterTarget, Target

from kvasir_router.process.malloc_settings import GIVE_BACK_SECONDS

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from common import commit

HERE = Path(__file__).parent / "attacks"
SETTLE_SECONDS = 20
MIB = 1 << 20


@dataclass
class Run:
    """One target's attacks."""

    target: Target
    seconds: int
    """Seconds of mutated bodies, on all targets."""
    folder: Path
    times: bool
    """True if p99 may grow by no more than it may on a quiet machine."""
    explains: bool
    """True if what is contention is measured, too. No verdict depends on it."""
    baseline: float = 0.0
    resident: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def is_long(self) -> bool:
        return self.seconds >= 120

    @property
    def slow_seconds(self) -> int:
        return 30 if self.is_long else 6

    async def rehearse(self) -> None:
        """Have it do once what attacks make it do: caches and allocators have their size then."""
        target = self.target
        await self._client(2)
        await floods.requests(target.port, 1, self.folder, target.cheap_model)
        await floods.connections(target.port, 500)
        # As large as in the attack: an allocator keeps pieces of what was large.
        await self.bombs(Row(target.name, "rehearsal"))
        # Two seconds for the trim itself
        await asyncio.sleep(GIVE_BACK_SECONDS + 2)
        self.resident = target.resident()

    async def quiet(self) -> float:
        """Return the client's p99 without an attack. A limit of a second needs no long look."""
        client = await self._client(3 if self.times else 1)
        return percentile(client["seconds"], 0.99)

    async def beside(self, name: str, attack: Callable[[Row], Awaitable[None]]) -> None:
        """Attack while the client asks, and note what became of both."""
        row = Row(self.target.name, name)
        meter = _Meter(self.target)
        attacking = asyncio.ensure_future(attack(row))
        attacking.add_done_callback(meter.stop)
        seconds: list[float] = []
        problems: list[str] = []
        while not attacking.done():
            client = await self._client(3)
            seconds += client["seconds"]
            problems += client["problems"]
        try:
            await attacking
        except (RuntimeError, OSError, ValueError) as error:
            row.failed.append(f"{type(error).__name__}: {error}")
        row.load, attackers, own = meter.loads
        if self.explains:
            row.equal_p99 = await self.beside_equal_load(row.load + own, attackers)
        before, self.baseline = self.baseline, await self.quiet()
        row.judge(seconds, problems, max(before, self.baseline), self.times)
        row.expect(self.target.server.running, "the server ended")
        row.expect(not self.target.tracebacks(), f"a traceback: {self.target.tracebacks()}")
        self.add(row)

    async def beside_equal_load(self, server: float, attackers: float) -> float:
        """Return the client's p99 beside processes that take so many seconds of CPU time a second;
        a server's, and this process's, with the usual priority, the attackers' with a low one, as
        theirs is."""
        shares = []
        for seconds, nice in ((server, False), (attackers, True)):
            count = math.ceil(seconds)
            shares += [(seconds / count, nice) for _ in range(count)]
        burning = [
            asyncio.ensure_future(_script("burn.py", str(share), "4", nice=nice, prints=False))
            for share, nice in shares
        ]
        client = await self._client(3)
        await asyncio.gather(*burning)
        return percentile(client["seconds"], 0.99)

    def add(self, row: Row) -> None:
        """Print it at once: a run takes minutes."""
        self.rows.append(row)
        print(table([row]).splitlines()[1], flush=True)

    async def _client(self, seconds: int) -> dict[str, Any]:
        target = self.target
        arguments = (str(target.port), target.model, str(seconds))
        return dict(await _script("steady_client.py", *arguments))

    # Attacks

    async def slow_clients(self, row: Row) -> None:
        count = 400 if self.is_long else 100
        modes = list(slow_http.MODES)
        notes = await asyncio.gather(
            *(
                slow_http.attack(self.target.port, mode, count, self.slow_seconds, self.folder)
                for mode in modes
            )
        )
        row.sent = count * len(modes)
        row.note = "; ".join(f"{mode}: {note}" for mode, note in zip(modes, notes, strict=True))

    async def request_flood(self, row: Row) -> None:
        model = self.target.cheap_model if self.target.is_router else "no-such-model"
        row.sent = await floods.requests(self.target.port, self.slow_seconds, self.folder, model)
        row.expect(row.sent > 0, "nothing was answered")

    async def connection_flood(self, row: Row) -> None:
        count = 8000 if self.is_long else 1500
        row.sent = await floods.connections(self.target.port, count)
        row.expect(row.sent == count, f"{count - row.sent} of {count} were not answered")

    async def smuggled(self, row: Row) -> None:
        before = {each.name: await smuggling.seen(each.port) for each in self.target.backends}
        models = [backend.name for backend in self.target.backends] or [self.target.model]
        for model in models:
            sent, twice = await smuggling.attack(self.target.port, model)
            row.sent += sent
            row.expect(not twice, f"{model} was made to answer twice by {twice[:2]}")
        for backend in self.target.backends:
            told = await smuggling.seen(backend.port)
            row.expect(not told["hidden"], f"{backend.name} saw {told['hidden']} hidden requests")
            seen = told["count"] - before[backend.name]["count"]
            row.expect(seen > 0, f"{backend.name} saw nothing: no spelling was sent on")
            row.note += f"{backend.name} saw {seen} requests, {told['hidden']} hidden; "

    async def bombs(self, row: Row) -> None:
        target, size = self.target, MIB // 4
        if target.is_router:
            size = 60 * MIB if self.is_long else 8 * MIB
        arguments = (target.port, target.cheap_model, size)
        told = await _script("bombs.py", *map(str, arguments), nice=True)
        allowed = (415,) if target.is_router else (400, 415)
        for status in told["compressed"]:
            row.expect(status in allowed, f"a compressed body was answered {status}")
        for begins, status in told["dense"]:
            row.expect(0 <= status < 500, f"{begins}... was answered {status}")
        statuses = Counter([*told["compressed"], *(status for _, status in told["dense"])])
        row.sent = statuses.total()
        row.note = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))

    async def mutated(self, row: Row) -> None:
        target, share = self.target, 0.4 if self.target.is_router else 0.2
        seconds = max(round(share * self.seconds), 1)
        count = 1_000_000
        arguments = (target.port, target.cheap_model, seconds, count, int(time.time()))
        told = await _script("mutations.py", *map(str, arguments), nice=True)
        row.sent = told["sent"]
        row.note = ", ".join(f"{status}: {number:,}" for status, number in told["statuses"].items())
        row.expect(not told["bad"], f"answered badly, seed {arguments[-1]}: {told['bad'][:2]}")

    async def remember(self) -> None:
        """Judge the memory when all is over; allocators give it back in their own time."""
        row = Row(self.target.name, "memory, after all of them")
        until = time.monotonic() + SETTLE_SECONDS
        while (now := self.target.resident()) > (1 + MAX_MEMORY_GROWTH) * self.resident:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.5)
        grown = now / self.resident - 1
        row.note = f"{self.resident / MIB:.0f} -> {now / MIB:.0f} MiB"
        row.expect(grown <= MAX_MEMORY_GROWTH, f"memory grew by {grown:.0%}")
        self.add(row)

    async def all(self) -> None:
        """Run every attack."""
        await self.target.start()
        await self.rehearse()
        self.baseline = await self.quiet()
        await self.beside("slow clients (slowhttptest)", self.slow_clients)
        await self.beside("requests (h2load)", self.request_flood)
        await self.beside("connections (h2load)", self.connection_flood)
        await self.beside("request smuggling", self.smuggled)
        await self.beside("bombs", self.bombs)
        await self.beside("mutated bodies", self.mutated)
        await self.remember()


class _Meter:
    """CPU time that is taken while an attack lasts: by its target, by the attackers' processes that
    have ended (the client's too), and by this process, in seconds a second."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._began = self._now()
        self.loads: list[float] = []
        """Once it has stopped."""

    def stop(self, _: object) -> None:
        spent = [now - then for now, then in zip(self._now(), self._began, strict=True)]
        self.loads = [each / spent[0] for each in spent[1:]]

    def _now(self) -> tuple[float, ...]:
        children, own = map(resource.getrusage, (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
        seconds = (each.ru_utime + each.ru_stime for each in (children, own))
        return (time.monotonic(), self._target.cpu_seconds(), *seconds)


async def _script(name: str, *arguments: str, nice: bool = False, prints: bool = True) -> Any:
    """Run a script of the folder, and return the JSON that it prints, if it does."""
    before = ("nice", "-n", "10") if nice else ()
    process = await asyncio.create_subprocess_exec(
        *(*before, sys.executable, str(HERE / name), *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1] / "api")},
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}")
    return json.loads(output) if prints else None


async def run(
    folder: Path, seconds: int, times: bool, explains: bool, only: list[str]
) -> list[Row]:
    """Attack one target after the other."""
    targets: dict[str, Callable[[], Target]] = {
        "router": lambda: RouterTarget(1, folder / "router"),
        "workers": lambda: RouterTarget(2, folder / "workers"),
        "engine": lambda: Target("engine", folder / "engine"),
    }
    rows = []
    for name, make in targets.items():
        if only and name not in only:
            continue
        each = Run(make(), seconds, folder, times, explains)
        try:
            await each.all()
        finally:
            await each.target.stop()
        rows += each.rows
        if any(row.failed for row in each.rows):
            print(each.target.server.log.read_text()[-3000:], file=sys.stderr)
    return rows


def main() -> None:
    """Run them, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=[], choices=["router", "workers", "engine"])
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    slow_http.check_installed()
    floods.check_installed()
    explains = options.times or options.save is not None
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(
            run(Path(folder), options.seconds, options.times, explains, options.only)
        )
    print(table(rows))
    if options.save:
        date = datetime.now(UTC).date().isoformat()
        about = {"date": date, "commit": commit(), "command": " ".join(("python", *sys.argv))}
        save(rows, options.save, **about, seconds=options.seconds, cores=os.cpu_count())
    if not rows or any(row.failed for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
