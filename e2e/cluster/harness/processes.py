"""Processes of a cluster, recorded in a file so that another process can end them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.commands import Argument, wait_for

_STATE, _THREADS, _STARTED = 0, 17, 19
"""Fields of /proc/PID/stat after the command's name."""


@dataclass(frozen=True)
class Process:
    """A process by pid and start time, so that a pid used again is not taken for it."""

    name: str
    pid: int
    started: int
    """Clock ticks after boot."""

    @classmethod
    def of(cls, name: str, pid: int) -> Process:
        """The process that has `pid` now. Raises ProcessLookupError."""
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(pid)
        return cls(name, pid, int(stat[_STARTED]))

    def is_alive(self) -> bool:
        """True if a thread of the process runs; one that ended and waits for its parent does not.

        While a process with many threads is killed, its first is a zombie before the others have
        closed its ports and files.
        """
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        stat = _stat(self.pid)
        if stat is None or int(stat[_STARTED]) != self.started:
            return False
        return stat[_STATE] != "Z" or int(stat[_THREADS]) > 1

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ProcessTable:
    """The processes of one cluster: a line each in DIRECTORY/processes, output in DIRECTORY/log."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "processes"
        self._log = directory / "log"

    def spawn(self, name: str, *command: Argument, env: Mapping[str, str] | None = None) -> Process:
        """Start `command` in a session of its own; its output goes to log/NAME.log."""
        self._log.mkdir(parents=True, exist_ok=True)
        arguments = [str(part) for part in command]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Not Popen: it would want to wait for a child that another process may end.
        pid = os.posix_spawnp(
            arguments[0],
            arguments,
            {**os.environ, **(env or {})},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log / f"{name}.log"), flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        process = Process.of(name, pid)
        self.record(process)
        return process

    def record(self, process: Process) -> None:
        """Remember a process that was started elsewhere."""
        with self._file.open("a") as file:
            file.write(f"{process.pid} {process.started} {process.name}\n")

    def find(self, name: str) -> Process | None:
        """The latest process of this name, if it runs."""
        return next(
            (p for p in reversed(list(self._recorded())) if p.name == name and p.is_alive()), None
        )

    def kill(self, name: str) -> None:
        """SIGKILL to the processes of this name; returns when they are gone."""
        kill([process for process in self._recorded() if process.name == name])

    def kill_all(self) -> None:
        """SIGKILL to every process, latest first; returns when they are gone."""
        kill(list(self._recorded())[::-1])

    def names(self) -> list[str]:
        """Names of the processes that run."""
        return [process.name for process in self._recorded() if process.is_alive()]

    def log(self, name: str, lines: int = 20) -> str:
        """The end of a process's output."""
        with suppress(FileNotFoundError):
            return "\n".join((self._log / f"{name}.log").read_text().splitlines()[-lines:])
        return ""

    def _recorded(self) -> Iterator[Process]:
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                pid, started, name = line.split(" ", 2)
                yield Process(name, int(pid), int(started))


def kill(processes: Sequence[Process], seconds: float = 30) -> None:
    """SIGKILL; returns when all are gone. Raises HarnessError when they are not in time."""
    for process in processes:
        process.signal(signal.SIGKILL)
    names = ", ".join(process.name for process in processes)
    wait_for(f"the end of {names}", lambda: not any(p.is_alive() for p in processes), seconds, 0.02)


def guard(directory: Path) -> subprocess.Popen[bytes]:
    """A process that ends those of `directory`'s table when its standard input closes: whatever
    happens to the caller, nothing stays."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness.processes", str(directory)],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )


def _stat(pid: int) -> list[str] | None:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return None


def _wait_and_end(directory: Path) -> None:
    sys.stdin.buffer.read()
    ProcessTable(directory).kill_all()


if __name__ == "__main__":
    _wait_and_end(Path(sys.argv[1]))
