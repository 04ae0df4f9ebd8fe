"""The supervisor's side, with small processes in the place of the one that watches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvasir.engine_values import GPU_FAULT_STATUS
from kvasir_engine.core.channels import Channels
from kvasir_engine.server.gpu_faults.fault_page import FaultPage
from kvasir_engine.server.process import gpu_watch
from kvasir_engine.server.process.gpu_watch import GpuWatch, start_gpu_watch
from kvasir_engine.server.server_settings import ServerSettings


def settings(**given: Any) -> ServerSettings:
    return ServerSettings(model="m", model_dir=Path("m"), **given)


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., tuple[GpuWatch, Channels]]:
    """Start a watch whose process runs this code, and wait for its end."""

    def start(code: str, **given: Any) -> tuple[GpuWatch, Channels]:
        channels = Channels(tmp_path)
        process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
        made = GpuWatch(channels, settings(**given), lambda: process)
        process.wait()
        return made, channels

    return start


def test_a_fault_is_on_the_page_when_its_process_has_ended(watch: Any) -> None:
    code = f"open('gpu-fault', 'w').write('GPU g: Xid 79'); raise SystemExit({GPU_FAULT_STATUS})"
    made, channels = watch(code)
    assert not FaultPage(channels.fault_page).is_set
    assert made.note_end() == GPU_FAULT_STATUS
    assert made.fault == "GPU g: Xid 79"
    assert FaultPage(channels.fault_page).reason == "GPU g: Xid 79"
    assert made.running is None
    assert made.note_end() is None, "told once"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_any_other_end_is_no_fault(watch: Any, code: int) -> None:
    made, channels = watch(f"raise SystemExit({code})")
    assert made.note_end() == code
    assert not made.fault
    assert not FaultPage(channels.fault_page).is_set


def test_one_that_runs_is_killed_at_the_end(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    made = GpuWatch(Channels(tmp_path), settings(), lambda: process)
    assert made.note_end() is None
    made.stop()
    assert process.wait() == -9
    if process.stdin is not None:
        process.stdin.close()


def test_the_time_after_a_fault_is_never_longer_than_a_drain(watch: Any) -> None:
    assert watch("")[0].drain_timeout == 10
    assert watch("", drain_timeout=3.0)[0].drain_timeout == 3
    assert watch("", gpu_fault_timeout=0.0)[0].drain_timeout == 0


@pytest.mark.parametrize(
    ("device", "driver", "given"),
    [
        ("cpu", True, {}),
        ("sim", True, {}),
        ("auto", False, {}),
        ("cuda", True, {"gpu_faults": "off"}),
        ("sim", True, {"gpu_faults": "off", "sim_gpu_fault": Path("f")}),
    ],
)
def test_where_there_is_nothing_to_watch_no_process_is_started(
    device: str, driver: bool, given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "_DRIVER", tmp_path if driver else tmp_path / "missing")
    assert start_gpu_watch(Channels(tmp_path), settings(**given), device) is None
    assert not Channels(tmp_path).fault_page.exists()
