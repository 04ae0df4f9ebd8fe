"""The core's process by itself: its exit status says whose fault its end was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.core.channels import Channels, CoreConfig
from kvasir_engine.core.status import CoreStatus, Phase
from kvasir_engine.settings import make_settings


@pytest.fixture
def channels(tmp_path: Path) -> Channels:
    """A runtime directory as whoever starts a core leaves it."""
    made = Channels(tmp_path)
    made.metrics.mkdir()
    CoreStatus(made.status, create=True).close()
    return made


def run(
    channels: Channels, model_dir: Path, parent: int, **settings: Any
) -> subprocess.Popen[bytes]:
    made = make_settings(str(model_dir), **{"device": "sim", "num_blocks": 512, **settings})
    channels.write_config(CoreConfig(made, str(model_dir), num_clients=1))
    command = [sys.executable, "-m", "kvasir_engine.core.process", str(channels.directory)]
    return subprocess.Popen([*command, str(parent)], stderr=subprocess.PIPE)


def phase(channels: Channels) -> Phase:
    status = CoreStatus(channels.status)
    try:
        return status.phase
    finally:
        status.close()


def test_sigterm_is_an_orderly_end(channels: Channels, tiny_dir: Path) -> None:
    with run(channels, tiny_dir, os.getpid()) as core:
        while phase(channels) is not Phase.SERVING:
            assert core.poll() is None
            time.sleep(0.01)
        core.terminate()
        assert core.wait(30) == 0
    assert not channels.failure.exists()


def test_the_users_fault_is_status_2_without_a_traceback(
    channels: Channels, tiny_dir: Path
) -> None:
    with run(channels, tiny_dir, os.getpid(), speed_profile="no-such-profile") as core:
        _, said = core.communicate(timeout=30)
    assert core.returncode == 2
    assert b"Traceback" not in said
    assert "no-such-profile" in channels.failure.read_text()
    assert phase(channels) is Phase.DEAD


def test_any_other_end_is_status_1_and_logged(channels: Channels, tiny_dir: Path) -> None:
    """Here a directory stands where the core would listen."""
    channels.metrics.rmdir()
    (channels.directory / "core").mkdir()
    with run(channels, tiny_dir, os.getpid()) as core:
        _, said = core.communicate(timeout=30)
    assert core.returncode == 1
    assert b"the core ended" in said
    assert b"Traceback" in said
    assert channels.failure.read_text()
    assert phase(channels) is Phase.DEAD


def test_a_core_whose_parent_has_gone_never_starts(channels: Channels, tiny_dir: Path) -> None:
    with run(channels, tiny_dir, parent=1) as core:
        assert core.wait(30) == -signal.SIGKILL
    assert phase(channels) is Phase.STARTING
