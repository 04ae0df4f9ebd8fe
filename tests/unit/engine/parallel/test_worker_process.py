"""A worker's process from rank 0's side."""

from __future__ import annotations

import os

from kvasir_engine.parallel.protocol import Progress, RankError, Report
from kvasir_engine.parallel.worker_process import WorkerProcess


def test_a_killed_worker_says_how_it_ended(worker_config, worker_env, processes) -> None:
    worker = WorkerProcess(1, worker_config, worker_env)
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


def test_reports_in_parts_are_read_whole(worker_config, worker_env) -> None:
    worker = WorkerProcess(1, worker_config, worker_env)
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
