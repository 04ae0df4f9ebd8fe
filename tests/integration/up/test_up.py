"""`kvasir up` as a process, with stand-ins for engine and router."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.slow

DEADLINE = 60.0
COMMAND = (sys.executable, "-m", "kvasir", "up", "-f", "models.yaml", "--log-dir", "logs")


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE} s: {what}")


def get(url: str) -> Any:
    try:
        with urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except (URLError, ConnectionError):
        return None


class Up:
    """A running `kvasir up` and what it told."""

    def __init__(self, environ: dict[str, str], directory: Path, port: int, yaml: str) -> None:
        self.directory, self.port = directory, port
        (directory / "models.yaml").write_text(yaml)
        with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*COMMAND, "--port", str(port)],
                cwd=directory,
                env=environ,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return (self.directory / "out").read_text()

    @property
    def err(self) -> str:
        return (self.directory / "err").read_text()

    def wait_ready(self) -> None:
        wait_until(lambda: "Ready after" in self.out, f"ready; it wrote: {self.err}")

    def engines(self) -> list[str]:
        fleet = json.loads(Path(self.router("argv")[2]).read_text())
        return [r["url"] for model in fleet["models"] for r in model["replicas"]]

    def router(self, key: str) -> Any:
        return get(f"http://127.0.0.1:{self.port}/")[key]

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


@pytest.fixture
def start(standin: Any, tmp_path: Path, free_port: int) -> Iterator[Callable[[str], Up]]:
    runs: list[Up] = []

    def run(yaml: str, **environ: str) -> Up:
        runs.append(Up({**standin.environ, **environ}, tmp_path, free_port, yaml))
        return runs[-1]

    yield run
    for up in runs:
        up.process.kill()
        up.process.wait()


def deployment(name: str, replicas: int = 1, spec: str = "") -> str:
    return (
        "---\napiVersion: kvasir.dev/v1alpha1\nkind: LLMDeployment\n"
        f"metadata: {{name: {name}}}\nspec:\n  model: {{uri: builtin://kvasir-tiny}}\n"
        f"  replicas: {replicas}\n{spec}\n"
    )


def test_it_serves_until_interrupted_and_leaves_nothing(
    start: Callable[..., Up], standin: Any, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    env = (
        "  engine: {env: [{name: STANDIN_SPAWN, value: '1'}, {name: OMP_NUM_THREADS, value: '7'}]}"
    )
    up = start(deployment("a", 2) + deployment("b", 1, env), STANDIN_TRACE=str(trace))
    up.wait_ready()
    url = f"http://127.0.0.1:{up.port}"
    assert f"{url} serves a, b" in up.out
    assert f"curl {url}/v1/chat/completions" in up.out
    assert f'OpenAI(base_url="{url}/v1"' in up.out

    engines = [get(engine + "/") for engine in up.engines()]
    assert [e["argv"][:2] for e in engines] == [["serve", "builtin://kvasir-tiny"]] * 3
    threads = str(max(1, len(os.sched_getaffinity(0)) // 3))
    assert [e["environ"]["OMP_NUM_THREADS"] for e in engines] == [threads, threads, "7"]
    assert {e["environ"]["CUDA_VISIBLE_DEVICES"] for e in engines} == {""}
    secrets = {e["environ"]["KVASIR_FLEET_SECRET"] for e in engines}
    assert secrets == {up.router("environ")["KVASIR_FLEET_SECRET"]}
    config = Path(up.router("argv")[2])
    assert json.loads(config.read_text())["models"][1]["name"] == "b"

    assert up.stop() == 0
    assert standin.processes() == []
    assert not config.parent.exists()
    # The router drains while its engines still serve.
    assert trace.read_text().split() == ["router", "serve", "serve", "serve"]
    assert "Traceback" not in up.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_however_it_ends(
    start: Callable[..., Up], standin: Any, number: signal.Signals
) -> None:
    up = start(deployment("a", 2), STANDIN_SPAWN="1", KVASIR_API_KEY="secret")
    up.wait_ready()
    assert '-H "Authorization: Bearer $KVASIR_API_KEY"' in up.out
    assert 'api_key=os.environ["KVASIR_API_KEY"]' in up.out
    assert len(standin.processes()) > 6
    status = up.stop(number)
    assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    wait_until(lambda: standin.processes() == [], "no process left")


def test_interrupted_while_starting(start: Callable[..., Up], standin: Any) -> None:
    up = start(deployment("a", 2))
    wait_until(lambda: len(standin.processes()) >= 2, "something started")
    assert up.stop() in (0, 130)
    assert standin.processes() == []


def test_a_second_interrupt_does_not_wait(start: Callable[..., Up], standin: Any) -> None:
    spec = "  lifecycle: {drainSeconds: 600}"
    up = start(deployment("a", 1, spec), STANDIN_STUBBORN="1")
    up.wait_ready()
    up.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C again" in up.err, "it says that it waits")
    assert up.stop() == 0
    assert standin.processes() == []


def test_a_replica_that_dies_is_started_again(start: Callable[..., Up]) -> None:
    up = start(deployment("a", 2))
    up.wait_ready()
    engine = up.engines()[1]
    before = get(engine + "/")["pid"]
    get(engine + "/die")
    after = wait_until(lambda: get(engine + "/ready"), "the engine is back")["pid"]
    assert after != before
    assert "a-1 exited with status 9; its last lines:\n  told to die\n" in up.err
    assert up.stop() == 0
    assert "a-1 | told to die\n" in (up.directory / "logs" / "up.log").read_text()


def test_a_replica_that_cannot_start_ends_it_with_its_error(
    start: Callable[..., Up], standin: Any
) -> None:
    bad = "  engine: {env: [{name: STANDIN_FAIL, value: '1'}]}"
    up = start(deployment("good") + deployment("bad", 1, bad))
    assert up.process.wait(DEADLINE) == 1
    assert "kvasir: bad-0 exited with status 3 before it was ready; its last lines:" in up.err
    assert "  the model is no good" in up.err
    assert up.out == ""
    assert standin.processes() == []


def test_a_port_in_use(start: Callable[..., Up], standin: Any, free_port: int) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        up = start(deployment("a"))
        assert up.process.wait(DEADLINE) == 1
    assert up.err == (
        f"kvasir: port {free_port} on 127.0.0.1 is in use; stop what listens there or choose"
        " another with --port\n"
    )


@pytest.mark.parametrize(
    ("yaml", "sentence"),
    [
        ("kind: x", "document 1: apiVersion is missing"),
        (deployment("a", 0), "every spec.replicas is 0; nothing to start"),
    ],
)
def test_a_file_that_cannot_be_served(start: Callable[..., Up], yaml: str, sentence: str) -> None:
    up = start(yaml)
    assert up.process.wait(DEADLINE) == 2
    assert sentence in up.err


def test_progress_in_a_terminal(standin: Any, tmp_path: Path, free_port: int) -> None:
    (tmp_path / "models.yaml").write_text(deployment("a"))
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, "--port", str(free_port)],
        cwd=tmp_path,
        env={**standin.environ, "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen = ""
    try:
        while "Ctrl-C stops everything" not in seen:
            ready, _, _ = select.select([master], [], [], DEADLINE)
            assert ready, seen
            seen += os.read(master, 65536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        os.close(master)
    table = seen.partition("Ready after")[0]
    assert "process" in table
    assert "a-0" in table
    assert "starting" in table
    assert standin.processes() == []
