"""The process of one other rank, as rank 0 sees it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from kvasir_engine.parallel.protocol import Progress, RankError, Report, WorkerConfig

_READ_BYTES = 1 << 16


class WorkerProcess:
    """A started worker; the thread that makes it must outlive it (see die_with_parent)."""

    def __init__(
        self, rank: int, config: Callable[[int], WorkerConfig], env: Mapping[str, str]
    ) -> None:
        """`config` is given the descriptor that takes the worker's reports."""
        self.rank = rank
        self.progress: Progress | None = None
        self.failure: Report | None = None
        self._unread = b""
        self.reports, writing = os.pipe()
        os.set_blocking(self.reports, False)
        made = config(writing)
        reading, settings_end = os.pipe()
        # -P: a file in the user's directory must not take the place of a module.
        command = [sys.executable, "-P", "-m", "kvasir_engine.parallel.worker"]
        self._process = subprocess.Popen(
            [*command, str(rank), str(os.getpid())],
            stdin=reading,
            pass_fds=(*made.plans.descriptors, writing),
            env=env,
        )
        os.close(writing)
        os.close(reading)
        self.ended = os.pidfd_open(self._process.pid)
        """A descriptor that becomes readable when the process has ended."""
        # A broken pipe: it has ended already, which the watch will notice.
        with suppress(BrokenPipeError), os.fdopen(settings_end, "wb") as stdin:
            stdin.write(msgspec.json.encode(made))

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def read_reports(self) -> None:
        """Take in what it has reported."""
        with suppress(BlockingIOError):
            while data := os.read(self.reports, _READ_BYTES):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            report = msgspec.json.decode(line, type=Report)
            self.progress = report.progress
            if report.progress is Progress.FAILED:
                self.failure = report

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Return True if the worker has ended, or does within `seconds`."""
        poller = select.poll()
        poller.register(self.ended, select.POLLIN)
        return bool(poller.poll(1000 * seconds))

    def reason(self) -> Exception:
        """Return why it ended or is about to: what it reported, or how its process ended."""
        if self.failure is not None:
            return self.failure.error(self.rank)
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return RankError(f"tensor-parallel rank {self.rank} ended ({how})")

    def close(self) -> None:
        """Kill it if it still runs, and free what is left of it."""
        self._process.kill()
        self._process.wait()
        os.close(self.ended)
        os.close(self.reports)
