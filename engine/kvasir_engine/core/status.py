"""The core's state in shared memory, readable by every process at any time.

A hung core cannot answer, so what tells a hang from idleness must not need it: the core writes
the launch time of its oldest unfinished step here before launching, and the readers subtract it
from the clock (CLOCK_MONOTONIC is the same in all processes of a machine).
"""

from __future__ import annotations

import mmap
import time
from dataclasses import astuple
from enum import IntEnum
from pathlib import Path

import numpy as np

from kvasir_engine.core.client import LoadSnapshot
from kvasir_engine.scheduler.counters import SchedulerLoad

_FIELDS = ("phase", "launched_at", "turned_at", "running", "waiting", "inflight_tokens", "kv_usage")
_AT = {name: i for i, name in enumerate(_FIELDS)}
_BYTES = 8 * len(_FIELDS)


class CorePhase(IntEnum):
    """Phase of the core."""

    STARTING = 0
    SERVING = 1
    DRAINING = 2
    DEAD = 3


class CoreStatus:
    """Eight-byte floats in a mapped file. One writer; each field is written at once."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._values = np.frombuffer(self._map, dtype=np.float64)

    def close(self) -> None:
        """Unmap."""
        del self._values
        self._map.close()

    @property
    def phase(self) -> CorePhase:
        """Phase that the core last wrote."""
        return CorePhase(int(self._values[_AT["phase"]]))

    @phase.setter
    def phase(self, phase: CorePhase) -> None:
        self._values[_AT["phase"]] = float(phase)

    def set_launched_at(self, seconds: float) -> None:
        """Launch time of the oldest unfinished step on the monotonic clock; 0 = idle."""
        self._values[_AT["launched_at"]] = seconds

    def set_turned_at(self, seconds: float) -> None:
        """Write when the loop's present turn began, on the monotonic clock; 0 = it sleeps."""
        self._values[_AT["turned_at"]] = seconds

    def set_load(self, load: SchedulerLoad) -> None:
        """The engine's load after a step."""
        first = _AT["running"]
        self._values[first : first + 4] = astuple(load)

    def load(self) -> LoadSnapshot:
        """The engine's load now."""
        first = _AT["running"]
        running, waiting, inflight, usage = self._values[first : first + 4].tolist()
        return LoadSnapshot(
            int(running),
            int(waiting),
            int(inflight),
            usage,
            step_age_seconds=self._age("launched_at"),
            turn_age_seconds=self._age("turned_at"),
        )

    def _age(self, field: str) -> float:
        since = float(self._values[_AT[field]])
        return max(0.0, time.monotonic() - since) if since else 0.0
