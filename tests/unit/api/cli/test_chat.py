"""`kvasir chat` as a process: through a pipe, and in a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

API = Path(__file__).parents[4] / "api"


def test_a_message_through_a_pipe(kvasir: Any, server: Any) -> None:
    done = kvasir("chat", "--url", server.url, "--temperature", "0", stdin="hi\nthere\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "you said hi\nthere\n", "")
    assert server.requests[0]["model"] == "tiny"
    assert server.requests[0]["temperature"] == 0


def test_settings_from_the_environment(kvasir: Any, server: Any) -> None:
    done = kvasir("chat", "-m", "x", stdin="hi", KVASIR_URL=server.url, KVASIR_API_KEY="key")
    assert done.returncode == 0
    assert server.headers[0]["Authorization"] == "Bearer key"


def test_several_models(kvasir: Any, server: Any) -> None:
    server.models = ["a", "b"]
    done = kvasir("chat", "--url", server.url, stdin="hi")
    assert done.returncode == 2
    assert done.stderr == f"kvasir: choose a model with --model; {server.url} has a, b\n"


def test_an_address_that_is_none(kvasir: Any) -> None:
    done = kvasir("chat", "--url", "localhost:8080", stdin="hi")
    assert done.returncode == 2
    assert done.stderr == "kvasir: --url 'localhost:8080' must begin with http:// or https://\n"


def test_no_server(kvasir: Any, free_port: int) -> None:
    done = kvasir("chat", "--url", f"http://127.0.0.1:{free_port}", stdin="hi")
    assert done.returncode == 1
    assert "start a server with kvasir up -f manifests/tiny.yaml" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_message(kvasir: Any, server: Any) -> None:
    done = kvasir("chat", "--url", server.url, stdin=" \n")
    assert (done.returncode, done.stderr) == (
        2,
        "kvasir: standard input is empty; write a message to it\n",
    )


class Terminal:
    """`kvasir chat` in a terminal of its own."""

    def __init__(self, url: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvasir", "chat", "--url", url],
            env={**os.environ, "PYTHONPATH": str(API), "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.seen = ""
        self._start = 0

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` appears after what was waited for before."""
        while text not in self.seen[self._start :]:
            ready, _, _ = select.select([self._master], [], [], 30)
            assert ready, f"{text!r} did not come after {self.seen!r}"
            self.seen += os.read(self._master, 4096).decode()
        self._start = self.seen.index(text, self._start) + len(text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(server: Any) -> Iterator[Terminal]:
    found = Terminal(server.url)
    yield found
    found.close()


def test_a_conversation_in_a_terminal(terminal: Terminal, server: Any) -> None:
    terminal.wait_for("> ")
    terminal.write("hi\n")
    terminal.wait_for("you said hi")
    terminal.wait_for("> ")
    server.endless = True
    terminal.write("go on\n")
    terminal.wait_for("more more")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("(stopped)")
    assert server.left.wait(30)
    server.endless = False
    terminal.write("/exit\n")
    assert terminal.process.wait(30) == 0
    assert "Traceback" not in terminal.seen
