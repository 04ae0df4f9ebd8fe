"""Probe of GPUs that are not there: `--sim-gpu-fault FILE`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, ProbeError, Sight, XidEvent

_TICK_SECONDS = 0.05
_MAX_BYTES = 1 << 16


class SimulatedProbe:
    """One GPU, `sim-0`, to which happens what is appended to a file, a line each: `xid NUMBER`,
    `lost`, `found`, `reset`, `remap`, `ecc COUNT` or `hang SECONDS`; others are left out. Lines
    from before `open` are not read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0
        self._state = GpuState("sim-0", row_remap_failed=False, uncorrectable_errors=0)

    def open(self) -> tuple[str, ...]:
        """GpuProbe."""
        self._read = len(self._text())
        return (self._state.gpu,)

    def look(self, seconds: float) -> Sight:
        """GpuProbe."""
        until = time.monotonic() + seconds
        while not (lines := self._new_lines()) and (left := until - time.monotonic()) > 0:
            time.sleep(min(_TICK_SECONDS, left))
        events = [event for line in lines if (event := self._happens(line)) is not None]
        return Sight(tuple(events), (self._state,))

    def _new_lines(self) -> list[str]:
        text = self._text()
        end = text.rfind("\n") + 1  # a line that is being written waits
        lines = text[self._read : end].splitlines()
        self._read = max(self._read, end)
        return lines

    def _text(self) -> str:
        try:
            with self._file.open("rb") as file:
                return file.read(_MAX_BYTES).decode("ascii", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise ProbeError(f"{self._file} cannot be read: {error.strerror}") from error

    def _happens(self, line: str) -> XidEvent | None:
        name, _, value = line.strip().partition(" ")
        number = int(value) if value.isascii() and value.isdigit() else 0
        if name == "xid" and number:
            return XidEvent(self._state.gpu, number)
        if name == "hang":
            time.sleep(number)
        changes = {
            "lost": {"lost": True},
            "found": {"lost": False},
            "reset": {"needs_reset": True},
            "remap": {"row_remap_failed": True},
            "ecc": {"uncorrectable_errors": number},
        }
        self._state = replace(self._state, **changes.get(name, {}))  # type: ignore[arg-type]
        return None
