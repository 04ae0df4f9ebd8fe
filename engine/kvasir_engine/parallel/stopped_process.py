"""Test whether another process has been stopped, as by SIGSTOP.

A stopped rank does not end, and the others wait for it on the device without a limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

LOOK_SECONDS = 0.5
"""Seconds between two looks."""
_LOOKS = 3
"""Looks in a row at which a process has to be found stopped. Looks, not seconds: ranks that were
stopped and resumed together look at each other for the first time afterwards."""


@dataclass(slots=True)
class StoppedProcess:
    """Looks at one process, LOOK_SECONDS apart."""

    pid: int
    _found: int = field(default=0, init=False)

    def look(self) -> bool:
        """Return True when the process has been stopped for a while; a debugger's hold is none."""
        self._found = self._found + 1 if _state(self.pid) == "T" else 0
        return self._found >= _LOOKS


def _state(pid: int) -> str:
    """Return the state that /proc names by one letter; empty when the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
