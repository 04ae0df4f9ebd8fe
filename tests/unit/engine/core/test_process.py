"""The core's process by itself: its exit status says whose fault its end was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.core.channels import Channels, CoreConfig
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.core.status import CorePhase, CoreStatus
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.settings import make_settings


@pytest.fixture
def channels(tmp_path: Path) -> Channels:
    """A runtime directory as whoever starts a core leaves it."""
    made = Channels(tmp_path)
    made.metrics.mkdir()
    CoreStatus(made.status, create=True).close()
    return made


WITHOUT_A_LOOK_WHILE_IDLE = """
from kvasir_engine.core import process, service
service.IDLE_POLL_MS = 600_000
raise SystemExit(process.main())
"""


def run(
    channels: Channels,
    model_dir: Path,
    parent: int,
    program: tuple[str, ...] = ("-m", "kvasir_engine.core.process"),
    **settings: Any,
) -> subprocess.Popen[bytes]:
    made = make_settings(str(model_dir), **{"device": "sim", "num_blocks": 512, **settings})
    channels.write_config(CoreConfig(made, str(model_dir), num_clients=1))
    command = [sys.executable, *program, str(channels.directory), str(parent)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def phase(channels: Channels) -> CorePhase:
    status = CoreStatus(channels.status)
    try:
        return status.phase
    finally:
        status.close()


@pytest.mark.slow
def test_sigterm_is_an_orderly_end(channels: Channels, tiny_dir: Path) -> None:
    """It wakes a core that has nothing to do."""
    program = ("-c", WITHOUT_A_LOOK_WHILE_IDLE)
    with run(channels, tiny_dir, os.getpid(), program) as core:
        while phase(channels) is not CorePhase.SERVING:
            assert core.poll() is None
            time.sleep(0.01)
        core.terminate()
        try:
            assert core.wait(30) == 0
        finally:
            core.kill()
    assert not channels.failure.exists()


@pytest.mark.slow
def test_the_users_fault_is_status_2_without_a_traceback(
    channels: Channels, tiny_dir: Path
) -> None:
    with run(channels, tiny_dir, os.getpid(), speed_profile="no-such-profile") as core:
        _, said = core.communicate(timeout=30)
    assert core.returncode == 2
    assert b"Traceback" not in said
    assert "no-such-profile" in channels.failure.read_text()
    assert phase(channels) is CorePhase.DEAD


@pytest.mark.slow
def test_any_other_end_is_status_1_and_logged(channels: Channels, tiny_dir: Path) -> None:
    """Here a directory stands where the core would listen."""
    channels.metrics.rmdir()
    (channels.directory / "core").mkdir()
    with run(channels, tiny_dir, os.getpid()) as core:
        _, said = core.communicate(timeout=30)
    assert core.returncode == 1
    assert b"the core failed" in said
    assert b"Traceback" in said
    assert channels.failure.read_text()
    assert phase(channels) is CorePhase.DEAD


BROKEN = """
import sys
from kvasir_engine.core.process import main
from kvasir_engine.sim.sim_runner import SimRunner

def forward(self, plan):
    raise {error}

SimRunner.forward = forward
sys.exit(main())
"""


@pytest.mark.parametrize("error", ["ValueError('4 rows of 3')", "MemoryError()"])
async def test_a_failed_step_ends_the_core_with_one_error(
    channels: Channels, tiny_dir: Path, error: str
) -> None:
    made = make_settings(str(tiny_dir), device="sim", num_blocks=512)
    channels.write_config(CoreConfig(made, str(tiny_dir), num_clients=1))
    command = [sys.executable, "-c", BROKEN.format(error=error), str(channels.directory)]
    client = ZmqCoreClient(channels)
    command.append(str(os.getpid()))
    with subprocess.Popen(command, stderr=subprocess.PIPE) as core:  # noqa: ASYNC220
        await client.wait_ready()
        request = EngineRequest("r", 0, [5], SamplingParams(n=3, max_tokens=9))
        stream = await client.submit(request)
        with pytest.raises(EngineDeadError, match=error.partition("(")[0]):
            await anext(stream)
        client.close()
        _, said = await asyncio.to_thread(core.communicate, timeout=30)
    assert core.returncode == 1, "a defect is not the user's to mend"
    assert said.count(b"Traceback") == 1
    assert error.partition("(")[0].encode() in said
    assert b"StuckError" not in said


LEAKING = """
import sys
from kvasir_engine.core.process import main
from kvasir_engine.core.service import CoreService

add = CoreService._add

def leak(self, request):
    self.core.scheduler.kv.pools[0].allocate(1)
    add(self, request)

CoreService._add = leak
sys.exit(main())
"""


async def test_a_leak_is_logged_and_the_core_goes_on(channels: Channels, tiny_dir: Path) -> None:
    made = make_settings(str(tiny_dir), device="sim", num_blocks=512)
    channels.write_config(CoreConfig(made, str(tiny_dir), num_clients=1))
    command = [sys.executable, "-c", LEAKING, str(channels.directory), str(os.getpid())]
    client = ZmqCoreClient(channels)
    with subprocess.Popen(command, stderr=subprocess.PIPE) as core:  # noqa: ASYNC220
        await client.wait_ready()
        for number in range(3):
            request = EngineRequest(f"{number}", 0, [5], SamplingParams(max_tokens=2))
            async for _ in await client.submit(request):
                pass
        await client.drain()
        client.close()
        core.terminate()
        _, said = await asyncio.to_thread(core.communicate, timeout=30)
    assert core.returncode == 0
    assert 1 <= said.count(b"idle, but blocks") <= 3, "each state once"
    assert b"Traceback" not in said


def test_a_core_whose_parent_has_gone_never_starts(channels: Channels, tiny_dir: Path) -> None:
    with run(channels, tiny_dir, parent=1) as core:
        assert core.wait(30) == -signal.SIGKILL
    assert phase(channels) is CorePhase.STARTING
