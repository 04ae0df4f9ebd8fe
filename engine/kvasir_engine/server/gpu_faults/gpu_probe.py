"""Interface of what looks at GPUs, and what it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ProbeError(RuntimeError):
    """GPUs cannot be looked at; a sentence says why."""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An event of the driver, told once."""

    gpu: str
    """UUID of the GPU."""
    xid: int


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as it says that it is. None = it does not tell."""

    gpu: str
    """UUID of the GPU."""
    lost: bool = False
    """It has fallen off the bus, or is inaccessible otherwise until the node is started again."""
    needs_reset: bool = False
    """It takes no work before it is reset."""
    row_remap_failed: bool | None = None
    """A row could not be remapped, at any time before."""
    uncorrectable_errors: int | None = None
    """ECC errors since the driver was loaded."""
    slowdowns: frozenset[str] = frozenset()
    """Causes, of SLOWDOWNS, that lower its clocks now."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Result of one look: what has happened since the last one, and all GPUs' states."""

    events: tuple[XidEvent, ...] = ()
    states: tuple[GpuState, ...] = ()


SLOWDOWNS = ("hardware_thermal", "software_thermal", "power_brake")


class GpuProbe(Protocol):
    """Eyes on the GPUs of this engine and on no other one.

    Its methods are called by one thread, which is not the engine's: each may take any time.
    """

    def open(self) -> tuple[str, ...]:
        """Begin; returns the GPUs' UUIDs. Events from before are never told. Raises ProbeError."""
        ...

    def look(self, seconds: float) -> Sight:
        """Return what is to be seen after at most `seconds`, or as soon as there are events.

        GPUs that are gone are states, no errors. Raises ProbeError where nothing can be seen this
        time.
        """
        ...
