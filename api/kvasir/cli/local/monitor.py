"""Run one command and leave none of its processes behind, however its parent ends.

A script, not a module to import: `python -I -S monitor.py PARENT_PID GRACE COMMAND...`. It needs
only the standard library, so that it starts in milliseconds. SIGTERM ends the command, and after
GRACE seconds kills it; SIGINT kills it at once; the parent's death is a SIGTERM with a short grace.
The command's own children are killed when it exits: the monitor adopts them as their subreaper.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ORPHAN_GRACE = 5.0
_TICK = 0.5
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def main() -> int:
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    child = _start(command)
    try:
        return _watch(child, parent, grace)
    finally:
        _kill_descendants()


def _start(command: list[str]) -> int:
    """Fork and execute the command in its own process group; its pid."""
    monitor = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if os.getppid() == monitor:
            os.execvp(command[0], command)  # noqa: S606  (no shell is wanted)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def _watch(child: int, parent: int, grace: float) -> int:
    """Wait for the command and pass signals on; its exit status as a shell gives it."""
    deadline = float("inf")
    while True:
        received = signal.sigtimedwait(_SIGNALS, _TICK)
        number = received.si_signo if received else None
        if number == signal.SIGINT:
            os.kill(child, signal.SIGKILL)
        elif number == signal.SIGTERM:
            os.kill(child, signal.SIGTERM)
            seconds = grace if os.getppid() == parent else min(grace, ORPHAN_GRACE)
            deadline = min(deadline, time.monotonic() + seconds)
        for pid, status in _reap():
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)


def _reap() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _kill_descendants() -> None:
    """Kill what the command left behind, generation by generation: orphans become our children."""
    while children := list(_children()):
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    own = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            # The name in parentheses may hold anything; the parent follows it and the state.
            if stat.rpartition(")")[2].split()[1] == own:
                yield int(entry.name)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    sys.exit(main())
