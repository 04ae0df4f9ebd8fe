"""A process that was stopped is told from one that waits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from kvasir_engine.parallel.stopped_process import StoppedProcess, _state


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def wait_for(pid: int, state: str) -> None:
    while _state(pid) != state:
        pass


def test_one_that_waits_is_not_stopped(sleeping) -> None:
    wait_for(sleeping.pid, "S")
    looks = StoppedProcess(sleeping.pid)
    assert [looks.look() for _ in range(5)] == [False] * 5


def test_one_that_stays_stopped_is(sleeping) -> None:
    os.kill(sleeping.pid, signal.SIGSTOP)
    wait_for(sleeping.pid, "T")
    looks = StoppedProcess(sleeping.pid)
    assert [looks.look() for _ in range(3)] == [False, False, True]


def test_one_that_goes_on_is_not(sleeping) -> None:
    looks = StoppedProcess(sleeping.pid)
    os.kill(sleeping.pid, signal.SIGSTOP)
    wait_for(sleeping.pid, "T")
    assert [looks.look() for _ in range(2)] == [False, False]
    os.kill(sleeping.pid, signal.SIGCONT)
    wait_for(sleeping.pid, "S")
    assert not looks.look()
    os.kill(sleeping.pid, signal.SIGSTOP)
    wait_for(sleeping.pid, "T")
    assert not looks.look()


def test_one_that_has_ended_is_not(sleeping) -> None:
    sleeping.kill()
    sleeping.wait()
    looks = StoppedProcess(sleeping.pid)
    assert [looks.look() for _ in range(5)] == [False] * 5
