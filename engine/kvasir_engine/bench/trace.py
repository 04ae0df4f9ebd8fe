"""Utilisation of a GPU, from a trace of torch's profiler."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Share of one kernel in a trace."""

    name: str
    calls: int
    microseconds: float
    """Microseconds of all calls, each counted from its start or the end of what ran before, if that
    is later: a kernel that is set up while another one runs does no work yet."""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Activity of the GPU between its first and its last kernel or copy."""

    span_us: float
    busy_us: float
    """Microseconds of `span_us` in which at least one kernel or copy ran."""
    kernels: list[KernelTime]
    """The longest first."""

    @property
    def idle_share(self) -> float:
        """Share of the span in which nothing ran, 0 to 1."""
        return 1.0 - self.busy_us / self.span_us if self.span_us else 0.0


def gpu_time(trace: Path) -> GpuTime:
    """Read a trace in Chrome's format. Raises ValueError where nothing ran on a GPU."""
    events: list[dict[str, Any]] = json.loads(trace.read_bytes())["traceEvents"]
    ran = sorted(
        (float(event["ts"]), float(event["dur"]), str(event["name"]))
        for event in events
        if event.get("cat") in _ON_GPU
    )
    if not ran:
        raise ValueError(f"{trace} has no activity of a GPU.")
    calls: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    busy, until = 0.0, ran[0][0]
    for start, duration, name in ran:
        own = max(0.0, start + duration - max(start, until))
        busy += own
        until = max(until, start + duration)
        calls[name] += 1
        times[name] += own
    kernels = [KernelTime(name, calls[name], times[name]) for name in calls]
    kernels.sort(key=lambda each: -each.microseconds)
    return GpuTime(until - ran[0][0], busy, kernels)
