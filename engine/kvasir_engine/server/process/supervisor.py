"""The process that `kvasir serve` is: starts core and API processes, and ends with them.

It imports neither torch nor the server, so that it can watch while both load. Children are
started from its main thread and die with it. SIGTERM or SIGINT goes to the API processes, which
drain; the core follows when they are gone. The core's end is everybody's. An API process that ends
by itself is replaced: the core aborts what it had running when the next one of its number says
hello. One that ends before the model serves, or too often, ends everything. After a fault of a GPU
the API processes drain, for a short time, and the engine ends with a status of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from kvasir.engine_values import GPU_FAULT_STATUS
from kvasir_engine.core.channels import MAX_CLIENTS, CoreConfig
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.server.process.api_config import ApiConfig, write_api_config
from kvasir_engine.server.process.gpu_watch import GpuWatch, start_gpu_watch
from kvasir_engine.server.reports.watch_page import WatchPage
from kvasir_engine.settings import SettingsError

SHUTDOWN_GRACE_SECONDS = 3.0
"""Seconds that API processes get after the core's death to fail their requests and end."""
DRAIN_MARGIN_SECONDS = 10.0
"""Seconds beyond --drain-timeout: handover, flushing, closing."""
MAX_ENDS = 5
"""Ends of API processes within ENDS_SECONDS that end the engine."""
ENDS_SECONDS = 60.0
BACKOFF_SECONDS = 1.0
"""Seconds before the second restart within ENDS_SECONDS; twice as long before each further one."""


class PortError(Exception):
    """The port cannot be had; the message names it."""


@dataclass
class Engine:
    """The processes of one engine."""

    core: CoreProcess
    start_api: Callable[[int], subprocess.Popen[bytes]]
    drain_timeout: float
    gpu_watch: GpuWatch | None = None
    apis: list[subprocess.Popen[bytes]] = field(init=False)
    _stop_asked: int = field(default=0, init=False)
    _restarts: dict[int, float] = field(default_factory=dict, init=False)
    """Times at which the API processes that have ended start again, on the monotonic clock."""
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_ENDS), init=False)

    def __post_init__(self) -> None:
        self.apis = [self.start_api(index) for index in range(self.core.num_clients)]

    def run(self) -> int:
        """Wait for the end. Exit status: 0 when asked to stop, the failed child's otherwise."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        previous = {n: signal.signal(n, self._on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
        signal.set_wakeup_fd(writer)
        try:
            while not (self._stop_asked or self._has_failed() or self._gpu_failed()):
                self._restart_due()
                self._wait_for_event(reader)
            if not self._stop_asked and self.gpu_watch is not None and self.gpu_watch.fault:
                return self._leave(reader, self.gpu_watch)
            return self._drain(reader) if self._stop_asked else self._fail()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._kill_apis()
            if self.gpu_watch is not None:
                self.gpu_watch.stop()
            self.core.stop()
            os.close(reader)
            os.close(writer)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_asked += 1

    def _has_failed(self) -> bool:
        """Return True to give up; plans the restart of the API processes that have ended."""
        if self.core.dead or self.core.process.poll() is not None:
            return True
        for index, process in enumerate(self.apis):
            if index not in self._restarts and process.poll() is not None:
                if not self.core.serving:
                    return True
                self._plan_restart(index, process)
        return len(self._ends) == MAX_ENDS and self._ends[-1] - self._ends[0] < ENDS_SECONDS

    def _gpu_failed(self) -> bool:
        watch = self.gpu_watch
        process = None if watch is None else watch.running
        if watch is None or process is None or (code := watch.note_end()) is None:
            return False
        if not watch.fault and code != 0:
            self.core.forget_gauges(process.pid)
            _say(f"the GPUs are watched no more ({_how(code)}).")
        return bool(watch.fault)

    def _leave(self, reader: int, watch: GpuWatch) -> int:
        """End because of a GPU's fault, when requests have gone elsewhere or their time is up."""
        seconds = self.drain_timeout = watch.drain_timeout
        _say(
            f"{watch.fault}. Requests have {seconds:g} s to go on elsewhere; then the engine ends."
        )
        self._drain(reader)
        # Once more: the last lines are what Kubernetes keeps of a container that ended
        _say(f"ended for a fault of its GPU: {watch.fault}.")
        return GPU_FAULT_STATUS

    def _plan_restart(self, index: int, ended: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        lately = sum(now - end < ENDS_SECONDS for end in self._ends)
        delay = BACKOFF_SECONDS * 2 ** (lately - 1) if lately else 0.0
        self._ends.append(now)
        self._restarts[index] = now + delay
        self.core.forget_gauges(ended.pid)
        _say(f"API process {index} ended ({_how(ended.returncode)}); restarting in {delay:g} s.")

    def _restart_due(self) -> None:
        now = time.monotonic()
        for index in [index for index, due in self._restarts.items() if due <= now]:
            del self._restarts[index]
            self.apis[index] = self.start_api(index)

    def _wait_for_event(self, reader: int) -> None:
        """Return when a signal has come, a child has ended or a restart is due."""
        running = [p for index, p in enumerate(self.apis) if index not in self._restarts]
        if self.gpu_watch is not None and self.gpu_watch.running is not None:
            running.append(self.gpu_watch.running)
        descriptors = [os.pidfd_open(p.pid) for p in (self.core.process, *running)]
        try:
            poller = select.poll()
            for descriptor in (reader, *descriptors):
                poller.register(descriptor, select.POLLIN)
            due = min(self._restarts.values(), default=None)
            left = None if due is None else max(0.0, due - time.monotonic()) * 1e3
            if any(descriptor == reader for descriptor, _ in poller.poll(left)):
                os.read(reader, 64)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _drain(self, reader: int) -> int:
        """API processes finish what runs; a second signal ends everything at once."""
        running = [process for process in self.apis if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.drain_timeout + DRAIN_MARGIN_SECONDS
        while any(process.poll() is None for process in running):
            if self._stop_asked > 1 or time.monotonic() > deadline:
                return 1
            select.select([reader], [], [], 0.05)
        return max((process.returncode for process in running), default=0)

    def _fail(self) -> int:
        """Say why it cannot go on, let the API processes fail their requests, end."""
        if self.core.process.poll() is None and not self.core.dead:
            if not self._ends:
                ended = next(process for process in self.apis if process.poll() is not None)
                _say(f"an API process ended ({_how(ended.returncode)}).")
            else:
                _say(f"API processes ended {MAX_ENDS} times within {ENDS_SECONDS:g} s; giving up.")
            return 1
        code = self.core.wait()
        _say(f"{self.core.failure() or 'the core ended'} ({_how(code)})")
        deadline = time.monotonic() + SHUTDOWN_GRACE_SECONDS
        while any(p.poll() is None for p in self.apis) and time.monotonic() < deadline:
            time.sleep(0.02)
        return code if code > 0 else 1

    def _kill_apis(self) -> None:
        for process in self.apis:
            if process.poll() is None:
                process.kill()
            process.wait()


def start_engine(core: CoreConfig, api: ApiConfig) -> Engine:
    """Start every process; returns at once. Raises PortError."""
    check_port(api.server.host, api.server.port, "--port")
    if api.grpc_port is not None:
        check_port(api.server.host, api.grpc_port, "--grpc-port")
    running = CoreProcess(core)
    write_api_config(running.channels, api)
    WatchPage(running.channels.watch, create=True)
    command = [sys.executable, "-m", "kvasir_engine.server.process.api"]

    def start_api(index: int) -> subprocess.Popen[bytes]:
        where = [str(running.channels.directory), str(index), str(os.getpid())]
        return subprocess.Popen([*command, *where], stdin=subprocess.DEVNULL)

    watch = start_gpu_watch(running.channels, api.server, core.settings.device)
    return Engine(running, start_api, api.server.drain_timeout, watch)


def check_port(host: str, port: int, flag: str) -> None:
    """Raise PortError, which names `flag`, unless the port is free.

    The API processes share it by SO_REUSEPORT, under which a second engine would get half of the
    first one's connections instead of an error.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with {flag}."
            ) from error


def check_clients(number: int) -> None:
    """Raise SettingsError for a number of API processes that cannot be."""
    if not 1 <= number <= MAX_CLIENTS:
        raise SettingsError(f"--api-processes must be between 1 and {MAX_CLIENTS}, got {number}.")


def _say(sentence: str) -> None:
    print(f"kvasir: {sentence}", file=sys.stderr)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
