"""The process that `kvasir serve` is: starts core and API processes, and ends with them.

It imports neither torch nor the server, so that it can watch while both load. Children are
started from its main thread and die with it. SIGTERM or SIGINT goes to the API processes, which
drain; the core follows when they are gone. A child that ends by itself ends everything.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from types import FrameType

from kvasir_engine.core.channels import MAX_CLIENTS, CoreConfig
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.server.process.api_config import ApiConfig, write_api_config
from kvasir_engine.server.reports.watch_page import WatchPage
from kvasir_engine.settings import SettingsError

SHUTDOWN_GRACE_SECONDS = 3.0
"""After the core's death: what API processes get to fail their requests and end."""
DRAIN_MARGIN_SECONDS = 10.0
"""Beyond --drain-timeout: handover, flushing, closing."""


class PortError(Exception):
    """The port cannot be had; the message names it."""


@dataclass
class Engine:
    """The processes of one engine."""

    core: CoreProcess
    apis: list[subprocess.Popen[bytes]]
    drain_timeout: float
    _stop_asked: int = field(default=0, init=False)

    def run(self) -> int:
        """Wait for the end. Exit status: 0 when asked to stop, the failed child's otherwise."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        previous = {n: signal.signal(n, self._on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
        signal.set_wakeup_fd(writer)
        try:
            self._wait_for_event(reader)
            return self._drain(reader) if self._stop_asked else self._fail()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._kill_apis()
            self.core.stop()
            os.close(reader)
            os.close(writer)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_asked += 1

    def _wait_for_event(self, reader: int) -> None:
        """Return when a signal has come or a child has ended."""
        descriptors = [os.pidfd_open(p.pid) for p in (self.core.process, *self.apis)]
        try:
            poller = select.poll()
            for descriptor in (reader, *descriptors):
                poller.register(descriptor, select.POLLIN)
            while not self._stop_asked and not any(fd != reader for fd, _ in poller.poll()):
                os.read(reader, 64)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _drain(self, reader: int) -> int:
        """API processes finish what runs; a second signal ends everything at once."""
        for process in self.apis:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.drain_timeout + DRAIN_MARGIN_SECONDS
        while any(process.poll() is None for process in self.apis):
            if self._stop_asked > 1 or time.monotonic() > deadline:
                return 1
            select.select([reader], [], [], 0.05)
        return max(process.returncode for process in self.apis)

    def _fail(self) -> int:
        """A child has ended by itself: say why, let the others fail their requests, end."""
        if self.core.process.poll() is None and not self.core.dead:
            ended = next(process for process in self.apis if process.poll() is not None)
            print(f"kvasir: an API process ended ({_how(ended.returncode)}).", file=sys.stderr)
            return 1
        code = self.core.wait()
        print(f"kvasir: {self.core.failure() or 'the core ended'} ({_how(code)})", file=sys.stderr)
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
    apis = [
        subprocess.Popen(
            [*command, str(running.channels.directory), str(index), str(os.getpid())],
            stdin=subprocess.DEVNULL,
        )
        for index in range(core.num_clients)
    ]
    return Engine(running, apis, api.server.drain_timeout)


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


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
