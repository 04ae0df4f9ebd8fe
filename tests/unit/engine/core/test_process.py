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
from kvasir_engine.request import EngineRequest, FinishReason
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
from kvasir_engine.errors import DeviceError
from kvasir_engine.sim.sim_runner import SimRunner

forward = SimRunner.forward
errors = [{errors}]

def broken(self, plan):
    if errors:
        raise errors.pop()
    forward(self, plan)

def recover(self, error):
    if isinstance(error, DeviceError):
        raise error
    return isinstance(error, MemoryError)

SimRunner.forward, SimRunner.recover = broken, recover
sys.exit(main())
"""


def broken_core(channels: Channels, tiny_dir: Path, errors: str) -> subprocess.Popen[bytes]:
    """A core whose first steps raise `errors`, the last one first."""
    program = ("-c", BROKEN.format(errors=errors))
    return run(channels, tiny_dir, os.getpid(), program)


async def stop(core: subprocess.Popen[bytes], client: ZmqCoreClient) -> bytes:
    """What it has said once it has ended on SIGTERM."""
    client.close()
    core.terminate()
    _, said = await asyncio.to_thread(core.communicate, timeout=30)
    return said


async def finish_reasons(client: ZmqCoreClient, **params: Any) -> set[FinishReason | None]:
    """Those of a request's samples."""
    request = EngineRequest("r", 0, [5], SamplingParams(max_tokens=9, **params))
    reasons = set()
    async for deltas in await client.submit(request):
        reasons |= {delta.finish_reason for delta in deltas}
    return reasons - {None}


@pytest.mark.parametrize("error", ["ValueError('4 rows of 3')", "KeyError(7)"])
async def test_a_failed_step_ends_its_requests_and_not_the_core(
    channels: Channels, tiny_dir: Path, error: str
) -> None:
    client = ZmqCoreClient(channels)
    with broken_core(channels, tiny_dir, error) as core:
        await client.wait_ready()
        assert await finish_reasons(client, n=3) == {FinishReason.ERROR}
        assert await finish_reasons(client, n=3) == {FinishReason.LENGTH}
        said = await stop(core, client)
    assert core.returncode == 0
    assert said.count(b"Traceback") == 1
    assert error.partition("(")[0].encode() in said


async def test_a_step_short_of_memory_ends_nothing_the_first_time(
    channels: Channels, tiny_dir: Path
) -> None:
    client = ZmqCoreClient(channels)
    with broken_core(channels, tiny_dir, "MemoryError('1 GiB')") as core:
        await client.wait_ready()
        assert await finish_reasons(client) == {FinishReason.LENGTH}
        said = await stop(core, client)
    assert b"a step ran out of memory (1 GiB): planned anew" in said
    assert b"Traceback" not in said


async def test_a_device_that_failed_ends_the_core_with_its_reason(
    channels: Channels, tiny_dir: Path
) -> None:
    client = ZmqCoreClient(channels)
    with broken_core(channels, tiny_dir, "DeviceError('the GPU failed: Xid 94')") as core:
        await client.wait_ready()
        with pytest.raises(EngineDeadError, match="the GPU failed: Xid 94"):
            await finish_reasons(client)
        client.close()
        _, said = await asyncio.to_thread(core.communicate, timeout=30)
    assert core.returncode == 1
    assert b"the GPU failed: Xid 94" in said


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
        said = await stop(core, client)
    assert core.returncode == 0
    assert 1 <= said.count(b"idle, but blocks") <= 3, "each state once"
    assert b"Traceback" not in said


def test_a_core_whose_parent_has_gone_never_starts(channels: Channels, tiny_dir: Path) -> None:
    with run(channels, tiny_dir, parent=1) as core:
        assert core.wait(30) == -signal.SIGKILL
    assert phase(channels) is CorePhase.STARTING
