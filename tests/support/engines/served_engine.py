"""`kvasir serve` as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from kvasir.cli.local.ports import free_ports

READY_SECONDS = 120.0


@dataclass
class Served:
    """A running `kvasir serve`."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    client: httpx.Client

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def post(self, path: str, body: object) -> httpx.Response:
        return self.client.post(path, json=body)

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Return when `condition` holds; fail after `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if self.get("/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.log.read_text()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def descendants(self) -> list[int]:
        """Process ids of its children."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def core_pid(self) -> int:
        """The core's process id."""
        for pid in self.descendants():
            if b"core.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("no core process")


@contextmanager
def launcher(directory: Path) -> Iterator[Callable[..., Served]]:
    """Yield `serve` below; logs go to `directory`."""
    running: list[Served] = []

    def start(
        *flags: str,
        wait: bool = True,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Served:
        port = port or free_ports(1)[0]
        log = directory / f"serve-{len(running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "kvasir", "serve", *flags, "--port", str(port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        url = f"http://127.0.0.1:{port}"
        # One client: each makes a TLS context, which takes longer than many a test.
        running.append(Served(process, url, log, httpx.Client(base_url=url, timeout=60)))
        if wait:
            running[-1].wait_ready()
        return running[-1]

    yield start
    for served in running:
        served.client.close()
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether the process has ended (a zombie has) within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
