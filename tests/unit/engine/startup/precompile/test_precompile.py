from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import triton

from kvasir_engine.settings import make_settings
from kvasir_engine.startup.precompile import precompile
from kvasir_engine.startup.precompile.precompile import (
    MIN_CORES,
    DryRun,
    GpuProperties,
    Precompiler,
)

GPU = torch.device("cuda")
NOTED = """
import os, sys
with open({notes!r}, "a") as notes:
    gpu = os.environ["CUDA_VISIBLE_DEVICES"] or "no GPU"
    print(gpu, sys.argv[1], sys.stdin.readline().strip(), sep="|", file=notes)
print({result!r}, end="")
"""
COMPILED = '{"kernels":1,"failed":0}'
HANG = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, h200: GpuProperties) -> None:
    """A machine with a GPU and cores, as far as anybody asks."""
    monkeypatch.setattr(precompile, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: h200)
    driver = SimpleNamespace(get_current_device=lambda: 0)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(MIN_CORES))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def dry_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """dry_run(program): what runs as the process that compiles."""

    def run(program: str) -> None:
        monkeypatch.setattr(precompile, "COMMAND", [sys.executable, "-c", program])

    return run


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Processes that have begun."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(*args, **kwargs))
        return processes[-1]

    stand_in = SimpleNamespace(Popen=begin, PIPE=subprocess.PIPE)
    stand_in.TimeoutExpired = subprocess.TimeoutExpired
    monkeypatch.setattr(precompile, "subprocess", stand_in)
    return processes


def start(model_dir: Path, **settings: Any) -> bool:
    """True when a start like this one need not compile any more."""
    with Precompiler(make_settings("m", **settings), model_dir) as precompiler:
        precompiler.compile_for(GPU)
        precompiler.finish()
    return precompiler.mark(torch.cuda.get_device_properties(GPU).name).exists()


def test_a_start_like_one_before_compiles_nothing_ahead(
    tmp_path: Path, dry_run: Callable[[str], None], h200: GpuProperties
) -> None:
    notes = tmp_path / "notes"
    dry_run(NOTED.format(notes=str(notes), result=COMPILED))
    assert start(tmp_path)
    assert start(tmp_path)
    assert start(tmp_path, max_num_seqs=8)
    (tmp_path / "config.json").write_text("{}")
    assert start(tmp_path)
    begun = [line.split("|") for line in notes.read_text().splitlines()]
    assert [gpu for gpu, *_ in begun] == ["no GPU"] * 3
    asked = [msgspec.json.decode(each, type=DryRun) for _, each, _ in begun]
    assert [each.settings.scheduler.max_num_seqs for each in asked] == [256, 8, 256]
    assert asked[0] == DryRun(make_settings("m"), str(tmp_path), os.getpid())
    described = [msgspec.json.decode(each, type=GpuProperties) for *_, each in begun]
    assert described == [h200] * 3


def test_packages_are_found_where_this_process_found_them(
    tmp_path: Path, dry_run: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_on_the_path.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    dry_run(f"import only_on_the_path\nprint({COMPILED!r}, end='')")
    assert start(tmp_path)


def test_another_gpu_compiles_its_own(
    tmp_path: Path,
    dry_run: Callable[[str], None],
    h200: GpuProperties,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes = tmp_path / "notes"
    dry_run(NOTED.format(notes=str(notes), result=COMPILED))
    assert start(tmp_path)
    other = replace(h200, name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: other)
    assert start(tmp_path)
    assert start(tmp_path)
    assert len(notes.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ('{"kernels":3,"failed":2}', "2 of 3 kernels were not precompiled"),
        ('{"kernels":3,"failed":0,"error":"KeyError: shape"}', "KeyError: shape"),
        ("", "Input data was truncated"),
    ],
)
def test_a_failed_dry_run_does_not_end_the_start(
    result: str,
    says: str,
    tmp_path: Path,
    dry_run: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dry_run(f"print({result!r}, end='')")
    with caplog.at_level(logging.WARNING):
        assert not start(tmp_path)
    assert says in caplog.text


def test_a_model_that_no_dry_run_can_load_is_not_marked(
    tmp_path: Path, dry_run: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    dry_run("""print('{"kernels":0,"failed":0}', end='')""")
    assert not start(tmp_path)
    assert not caplog.text


def test_a_start_does_not_wait_for_ever(
    tmp_path: Path,
    dry_run: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    begun: list[subprocess.Popen[bytes]],
) -> None:
    dry_run(HANG)
    monkeypatch.setattr(precompile, "MAX_WAIT_SECONDS", 0.01)
    assert not start(tmp_path)
    assert "timed out" in caplog.text
    assert [each.returncode for each in begun] == [-signal.SIGKILL]


def test_a_start_that_fails_leaves_no_process(
    tmp_path: Path, dry_run: Callable[[str], None], begun: list[subprocess.Popen[bytes]]
) -> None:
    dry_run(HANG)
    with pytest.raises(MemoryError), Precompiler(make_settings("m"), tmp_path):
        raise MemoryError
    assert [each.returncode for each in begun] == [-signal.SIGKILL]


@pytest.mark.parametrize(
    ("device", "cores"), [("cpu", MIN_CORES), ("cuda", MIN_CORES - 1)], ids=["cpu", "few cores"]
)
def test_it_is_left_out_where_it_does_not_pay(
    device: str,
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dry_run: Callable[[str], None],
) -> None:
    dry_run(NOTED.format(notes=str(tmp_path / "notes"), result=COMPILED))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    with Precompiler(make_settings("m", device=device), tmp_path) as precompiler:
        if device == "cuda":
            precompiler.compile_for(GPU)
        precompiler.finish()
    assert not (tmp_path / "notes").exists()


def test_without_a_driver_no_process_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(precompile, "NVIDIA_DRIVER", tmp_path / "absent")
    with Precompiler(make_settings("m"), tmp_path) as precompiler:
        precompiler.finish()
    assert begun == []
