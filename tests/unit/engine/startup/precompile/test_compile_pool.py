from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton

from kvasir_engine.startup.precompile.compile_pool import CompilePool

# Of Python, that locks of other threads stay locked in a fork. A dry run has no other threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def launchers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file to which each launcher that is made adds its kernel."""
    made = tmp_path / "launchers"

    def launcher(source: str, metadata: str) -> None:
        with made.open("a") as file:
            file.write(f"{source} {metadata}\n")

    driver = SimpleNamespace(launcher_cls=launcher)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    return made


def kernel(name: str) -> Callable[[], Any]:
    """Something to compile."""
    return lambda: SimpleNamespace(src=name, metadata="metadata")


def test_kernels_and_launchers_are_made_elsewhere(launchers: Path) -> None:
    compiling = CompilePool()
    futures = [compiling.submit(kernel(name)) for name in ("one", "two")]
    # Nobody launches them here.
    assert [future.result(timeout=0) for future in futures] == [None, None]
    assert compiling.finish() == 0
    assert compiling.started == 2
    assert sorted(launchers.read_text().split("\n")) == ["", "one metadata", "two metadata"]


def test_what_fails_is_counted(launchers: Path) -> None:
    compiling = CompilePool()

    def fail() -> None:
        raise ValueError("no such instruction")

    compiling.submit(fail)
    compiling.submit(kernel("one"))
    assert compiling.finish() == 1
    assert launchers.read_text() == "one metadata\n"


def test_cores_bound_what_is_compiled_at_once(
    launchers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    compiling, at_work = CompilePool(), tmp_path / "at_work"

    def alone() -> Any:
        at_work.mkdir()  # fails where another one is
        time.sleep(0.02)
        at_work.rmdir()
        return kernel("one")()

    for _ in range(4):
        compiling.submit(alone)
    assert compiling.finish() == 0


@pytest.mark.slow
def test_nothing_goes_on_when_the_start_is_killed(tmp_path: Path) -> None:
    program = """
import os, sys, time
from kvasir_engine.startup.precompile.compile_pool import CompilePool

def hang():
    print(os.getpid(), flush=True)
    time.sleep(600)

CompilePool().submit(hang)
time.sleep(600)
"""
    start = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert start.stdout is not None
    child = int(start.stdout.readline())
    start.send_signal(signal.SIGKILL)
    start.wait()
    # The pipe ends with the last process that holds it.
    assert start.stdout.read() == ""
    start.stdout.close()
    with pytest.raises(ProcessLookupError):
        wait_until_gone(child)


def wait_until_gone(process: int) -> None:
    """Until whoever is to has taken note of its end."""
    while True:
        os.kill(process, 0)
        time.sleep(0.01)
