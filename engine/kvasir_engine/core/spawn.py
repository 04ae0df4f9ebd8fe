"""Start the core as a process of its own and see to its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from kvasir_engine.core.channels import Channels, CoreConfig
from kvasir_engine.core.status import CorePhase, CoreStatus

KILL_AFTER_SECONDS = 5.0
GIVE_UP_SECONDS = 30.0
"""Seconds that a killed core may take to go: it frees much memory, or hangs in the driver of a GPU
that is lost, which nothing ends."""


class CoreProcess:
    """A running core and the private directory where its clients meet it."""

    def __init__(self, config: CoreConfig) -> None:
        """Start it; returns at once, before it is ready. Call from the main thread: the kernel
        takes a process's parent for dead when the thread that started it ends."""
        self.channels = Channels(Path(tempfile.mkdtemp(prefix="kvasir-")))
        self.channels.write_config(config)
        self.num_clients = config.num_clients
        self.channels.metrics.mkdir()
        self._status = CoreStatus(self.channels.status, create=True)
        command = [sys.executable, "-m", "kvasir_engine.core.process"]
        self.process = subprocess.Popen(
            [*command, str(self.channels.directory), str(os.getpid())], stdin=subprocess.DEVNULL
        )

    def wait(self) -> int:
        """Block until it has ended and mark it dead for every client; its exit status."""
        code = self.process.wait()
        self._status.phase = CorePhase.DEAD
        return code

    @property
    def serving(self) -> bool:
        """True once it has loaded the model, until it drains or ends."""
        return self._status.phase is CorePhase.SERVING

    @property
    def dead(self) -> bool:
        """True once it has said that it ends, which its exit may take a while to follow."""
        return self._status.phase is CorePhase.DEAD

    def forget_gauges(self, pid: int) -> None:
        """A process has ended: its counters still count, its gauges say nothing any more."""
        for file in self.channels.metrics.glob(f"gauge_live*_{pid}.db"):
            file.unlink(missing_ok=True)

    def failure(self) -> str:
        """Reason for which the core ended, if it knew; empty otherwise."""
        return self.channels.read_failure()

    def _kill(self) -> int:
        self.process.kill()
        try:
            return self.process.wait(GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def stop(self) -> int:
        """End it, by force if it does not listen, and remove the directory. Its exit status."""
        self.process.terminate()
        try:
            code = self.process.wait(KILL_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            code = self._kill()
        self._status.phase = CorePhase.DEAD
        shutil.rmtree(self.channels.directory, ignore_errors=True)
        return code
