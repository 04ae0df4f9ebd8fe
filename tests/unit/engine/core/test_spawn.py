"""A core's process from its parent's side: start, end and what is left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.spawn import GIVE_UP_SECONDS, KILL_AFTER_SECONDS, CoreProcess
from kvasir_engine.core.status import CorePhase, CoreStatus
from kvasir_engine.settings import make_settings


@pytest.fixture
def spawn(tiny_dir: Path) -> Iterator[Callable[..., CoreProcess]]:
    """spawn(**settings): a simulated core's process."""
    started: list[CoreProcess] = []

    def start(**settings: Any) -> CoreProcess:
        made = make_settings(str(tiny_dir), device="sim", num_blocks=512, **settings)
        started.append(CoreProcess(CoreConfig(made, str(tiny_dir), num_clients=1)))
        return started[-1]

    yield start
    for core in started:
        core.stop()


def until_serving(core: CoreProcess) -> None:
    status = CoreStatus(core.channels.status)
    while status.phase is CorePhase.STARTING:
        assert core.process.poll() is None
        time.sleep(0.01)
    assert status.phase is CorePhase.SERVING
    status.close()


def test_only_its_owner_may_enter_the_directory(spawn) -> None:
    directory = spawn().channels.directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.slow
def test_stop_ends_it_and_removes_what_it_had(spawn) -> None:
    core = spawn()
    until_serving(core)
    assert (core.dead, core.failure()) == (False, "")
    assert core.stop() == 0
    assert core.dead
    assert not core.channels.directory.exists()


@pytest.mark.slow
def test_a_core_that_does_not_listen_is_killed(spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir_engine.core.spawn.KILL_AFTER_SECONDS", 0.1)
    core = spawn()
    until_serving(core)
    core.process.send_signal(signal.SIGSTOP)
    assert core.stop() == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_core_is_marked_dead_by_who_waits_for_it(spawn) -> None:
    core = spawn()
    until_serving(core)
    os.kill(core.process.pid, signal.SIGKILL)
    assert core.wait() == -signal.SIGKILL
    assert (core.dead, core.failure()) == (True, "")


def test_a_setting_that_cannot_work_is_told_in_one_sentence(spawn) -> None:
    core = spawn(max_model_len=4096)
    assert core.wait() == 2
    assert core.dead
    assert core.failure().startswith("--max-model-len 4096 is longer")


def test_a_core_that_not_even_a_kill_ends_is_left_behind(
    spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = spawn()
    limits: list[float | None] = []

    def held(timeout: float | None = None) -> int:
        limits.append(timeout)
        raise subprocess.TimeoutExpired("core", timeout or 0.0)

    with monkeypatch.context() as patch:
        patch.setattr(core.process, "wait", held)
        assert core.stop() == -signal.SIGKILL
    assert limits == [KILL_AFTER_SECONDS, GIVE_UP_SECONDS]
    assert not core.channels.directory.exists()
    assert core.process.wait() < 0
