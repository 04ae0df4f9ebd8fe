"""Samples of the product's processes on the nodes, and of what pods say of themselves."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CGROUP = re.compile(r"/kvasir-(n\d+)/.*pod([0-9a-f_-]{36})/(?:.*-)?([0-9a-f]{64})")
_ROLES = {
    "-m kvasir_engine.core.process": "engine core",
    "-m kvasir_engine.server.process.api": "engine api",
    "/kvasir serve": "engine parent",
    "/kvasir router": "router",
    "/kvasir operator": "operator",
    "kvasir_engine": "engine helper",
    "multiprocessing": "child",
}
"""By a part of the command line; the first that is in it."""
FIGURES = ("rss_mib", "anonymous_mib", "fds", "threads")
_MIB = 1024


@dataclass(frozen=True)
class Life:
    """One life of a process: the pid and when it started."""

    role: str
    pod: str
    """UID."""
    container: str
    pid: int
    started: int
    """Clock ticks after boot."""


@dataclass(frozen=True)
class Sample:
    """Figures of a process at a time (time.monotonic() seconds)."""

    at: float
    rss_mib: float
    anonymous_mib: float
    fds: float
    threads: float


def lives(proc: Path = Path("/proc")) -> Iterator[Life]:
    """Yield every process of the product that runs in a container of the cluster."""
    for directory in proc.iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                found = _CGROUP.search((directory / "cgroup").read_text())
                role = role_of((directory / "cmdline").read_bytes()) if found else None
                if found and role:
                    stat = (directory / "stat").read_text().rpartition(")")[2].split()
                    pod = found[2].replace("_", "-")
                    yield Life(role, pod, found[3], int(directory.name), int(stat[19]))


def role_of(command_line: bytes) -> str | None:
    """Return what a process does, by its command line; None for none of ours."""
    text = command_line.replace(b"\0", b" ").decode(errors="replace")
    return next((role for part, role in _ROLES.items() if part in text), None)


def sample(pid: int, proc: Path = Path("/proc")) -> Sample:
    """Return the figures of a process. Raises OSError when it has ended."""
    status = dict(
        line.split(":", 1) for line in (proc / str(pid) / "status").read_text().splitlines()
    )
    if "VmRSS" not in status:
        raise ProcessLookupError(pid)

    def number(name: str) -> float:
        return float(status[name].split()[0])

    return Sample(
        at=time.monotonic(),
        rss_mib=number("VmRSS") / _MIB,
        anonymous_mib=number("RssAnon") / _MIB,
        fds=sum(1 for _ in (proc / str(pid) / "fd").iterdir()),
        threads=number("Threads"),
    )


class Samples:
    """All samples of a run, by life."""

    def __init__(self) -> None:
        self.by_life: dict[Life, list[Sample]] = defaultdict(list)

    def take(self) -> None:
        """Sample every process that there is."""
        for life in lives():
            with suppress(OSError):
                self.by_life[life].append(sample(life.pid))


def gauges(url: str) -> dict[str, float]:
    """Return a pod's metrics, summed over labels but for buckets. Raises OSError."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return totals(answer.read().decode())


def totals(text: str) -> dict[str, float]:
    """Return the sums of metrics in Prometheus' text format."""
    found: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line and not line.startswith("#") and "_bucket{" not in line:
            found[line.partition("{")[0].partition(" ")[0]] += float(line.rsplit(" ", 1)[1])
    return dict(found)


def changed(now: Mapping[str, float], names: Mapping[str, float]) -> dict[str, float]:
    """Return those metrics of `names` whose value is not the given one; absent ones count as it."""
    return {name: now[name] for name, wanted in names.items() if now.get(name, wanted) != wanted}
