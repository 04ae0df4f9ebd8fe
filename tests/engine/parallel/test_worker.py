"""A worker's process: what it reports, and whom it outlives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvasir_engine.parallel.plan_channel import PlanWriter
from kvasir_engine.parallel.protocol import Progress, RankError, Report, WorkerConfig
from kvasir_engine.parallel.worker_process import WorkerProcess
from kvasir_engine.settings import SettingsError, make_settings

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Callable[[int], WorkerConfig]]:
    """A configuration that the worker refuses: there is no GPU to be seen."""
    settings = make_settings("m", device="cuda", tensor_parallel_size=2)
    writer = PlanWriter(1)
    yield lambda reports: WorkerConfig(
        1, tmp_path / "store", tmp_path, settings, writer.reader(0), reports
    )
    writer.close()


def hidden_gpus() -> dict[str, str]:
    return {**ENV, "CUDA_VISIBLE_DEVICES": ""}


def test_a_refusal_is_reported_with_its_type_and_ends_the_process(config) -> None:
    worker = WorkerProcess(1, config, hidden_gpus())
    try:
        assert worker.wait(60)
        worker.read_reports()
        assert worker.progress is Progress.FAILED
        assert worker.failure is not None
        assert "Traceback" in worker.failure.traceback
        reason = worker.reason()
        assert type(reason) is SettingsError
        assert "use --device cpu" in str(reason)
        assert worker._process.wait() == 1
    finally:
        worker.close()


def test_a_killed_worker_says_how_it_ended(config, processes) -> None:
    worker = WorkerProcess(1, config, hidden_gpus())
    try:
        assert processes.running(worker.pid)
        assert not worker.wait(0)
        worker.kill()
        assert worker.wait(10)
        worker.read_reports()
        reason = worker.reason()
        assert type(reason) is RankError
        assert str(reason) == "tensor-parallel rank 1 ended (signal 9)"
    finally:
        worker.close()
    assert not processes.running(worker.pid)


def test_reports_in_parts_are_read_whole(config) -> None:
    worker = WorkerProcess(1, config, hidden_gpus())
    worker.kill()
    os.close(worker.reports)
    worker.reports, writing = os.pipe()
    os.set_blocking(worker.reports, False)
    line = Report(Progress.READY).encode()
    seen = []
    try:
        for part in (line[:7], line[7:], line + line[:3]):
            os.write(writing, part)
            worker.read_reports()
            seen.append(worker.progress)
    finally:
        os.close(writing)
        worker.close()
    assert seen == [None, Progress.READY, Progress.READY]


def test_a_worker_whose_parent_has_gone_ends_at_once() -> None:
    command = [sys.executable, "-P", "-m", "kvasir_engine.parallel.worker", "1", "1"]
    done = subprocess.run(command, env=ENV, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
