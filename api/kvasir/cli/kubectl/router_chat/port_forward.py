"""A port of this machine that leads to a Service, by `kubectl port-forward`.

kubectl knows the tunnel of every version of Kubernetes (SPDY, later WebSocket), and a plugin of
kubectl has it at hand. The API server's HTTP proxy would not do: it keeps the Authorization header,
which the router needs, for itself.
"""

from __future__ import annotations

import queue
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

_READY = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")
_SECONDS = 30.0
_END_SECONDS = 5.0


class PortForwardError(Exception):
    """No port could be forwarded; one sentence on why."""


@contextmanager
def forwarded(
    flags: Sequence[str], namespace: str, service: str, port: int, *, seconds: float = _SECONDS
) -> Iterator[int]:
    """Give a port of 127.0.0.1 that leads to the Service's `port`. `flags` are kubectl's for the
    cluster. Raises PortForwardError."""
    command = ["kubectl", *flags, "port-forward", "--address=127.0.0.1", "-n", namespace]
    command += [f"service/{service}", f":{port}"]
    with tempfile.TemporaryFile() as errors:
        try:
            # In a session of its own: Ctrl-C stops an answer, not the tunnel
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise PortForwardError(
                f"kubectl cannot be run ({error.strerror}); install it, since it forwards the"
                " router's port"
            ) from None
        lines: queue.Queue[str] = queue.Queue()
        # It goes on reading: kubectl writes a line for each connection, and would wait in the end
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            yield _port(process, lines, errors, service, seconds)
        finally:
            _end(process)
            reader.join(_END_SECONDS)


def _port(
    process: subprocess.Popen[str],
    lines: queue.Queue[str],
    errors: IO[bytes],
    service: str,
    seconds: float,
) -> int:
    """Wait for the port. Raises PortForwardError."""
    try:
        while line := lines.get(timeout=seconds):
            if found := _READY.search(line):
                return int(found[1])
    except queue.Empty:
        raise PortForwardError(
            f"the port of service/{service} is not forwarded after {seconds:g} s; look at the"
            " router's pods with kubectl kvasir status"
        ) from None
    process.wait()
    errors.seek(0)
    said = errors.read(4096).decode(errors="replace").strip().splitlines() or ["it says nothing"]
    raise PortForwardError(
        f"the port of service/{service} cannot be forwarded: {said[-1].removeprefix('error: ')}"
    )


def _read(output: IO[str], lines: queue.Queue[str]) -> None:
    """Put what comes up to the port into `lines`, and "" at the end."""
    waiting = True
    with output:
        for line in output:
            if waiting:
                lines.put(line)
                waiting = _READY.search(line) is None
    lines.put("")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
