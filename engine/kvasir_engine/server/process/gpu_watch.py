"""The supervisor's side of the process that watches the GPUs.

Whatever becomes of that process ends nothing, but for the exit status that says so: an engine
serves without being watched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kvasir.engine_values import GPU_FAULT_STATUS
from kvasir_engine.core.channels import Channels
from kvasir_engine.server.gpu_faults.fault_page import FaultPage
from kvasir_engine.server.server_settings import ServerSettings

_DRIVER = Path("/dev/nvidiactl")
"""Device of NVIDIA's driver, there in a container that has been given a GPU."""


class GpuWatch:
    """The process, if there is something to watch, and the page by which others know."""

    def __init__(
        self,
        channels: Channels,
        settings: ServerSettings,
        start: Callable[[], subprocess.Popen[bytes]],
    ) -> None:
        """`start` starts the process; call from the main thread."""
        self._channels = channels
        self._settings = settings
        self._page = FaultPage(channels.fault_page, create=True)
        self._process: subprocess.Popen[bytes] | None = start()
        self.fault = ""
        """Sentence on the fault that ends the engine; empty = there is none."""

    @property
    def drain_timeout(self) -> float:
        """Seconds that running requests get after a fault."""
        return min(self._settings.gpu_fault_timeout, self._settings.drain_timeout)

    @property
    def running(self) -> subprocess.Popen[bytes] | None:
        """The process, until its end is noted."""
        return self._process

    def note_end(self) -> int | None:
        """Return the exit status of the process, once, when it has ended."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        if code == GPU_FAULT_STATUS:
            self.fault = self._channels.read_gpu_fault() or "a GPU has failed"
            self._page.write(self.fault)
        return code

    def stop(self) -> None:
        """Kill it. It is not waited for: a call of the driver may hold it."""
        if self._process is not None:
            self._process.kill()
            self._process.poll()


def start_gpu_watch(channels: Channels, settings: ServerSettings, device: str) -> GpuWatch | None:
    """Watch what `settings` ask for; None where there is nothing to watch."""
    has_gpu = device == "cuda" or (device == "auto" and _DRIVER.exists())
    if settings.gpu_faults == "off" or not (has_gpu or settings.sim_gpu_fault is not None):
        return None
    command = [sys.executable, "-m", "kvasir_engine.server.process.gpu_watch_process"]
    where = [str(channels.directory), str(os.getpid())]
    return GpuWatch(
        channels, settings, lambda: subprocess.Popen([*command, *where], stdin=subprocess.DEVNULL)
    )
