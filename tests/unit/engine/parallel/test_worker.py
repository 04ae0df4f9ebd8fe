"""A worker's process: what it reports, and whom it outlives."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from kvasir_engine.parallel.protocol import Progress
from kvasir_engine.parallel.worker_process import WorkerProcess
from kvasir_engine.settings import SettingsError


@pytest.mark.slow
def test_a_refusal_is_reported_with_its_type_before_the_end(worker_config, worker_env) -> None:
    worker = WorkerProcess(1, worker_config, worker_env)
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


def test_a_worker_whose_parent_has_gone_ends_at_once(worker_env) -> None:
    command = [sys.executable, "-P", "-m", "kvasir_engine.parallel.worker", "1", "1"]
    done = subprocess.run(
        command, env=worker_env, stdin=subprocess.DEVNULL, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
