"""The engine of the correctness tests, and looking at processes."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvasir_engine.parallel.plan_channel import PlanWriter
from kvasir_engine.parallel.protocol import WorkerConfig
from kvasir_engine.settings import make_settings

_correctness = runpy.run_path(str(Path(__file__).parents[1] / "correctness" / "conftest.py"))
make_engine = _correctness["make_engine"]
job = _correctness["job"]


class Processes:
    """What /proc says; a zombie has ended."""

    @staticmethod
    def _stat(pid: int) -> list[str] | None:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None

    def running(self, pid: int) -> bool:
        """Whether the process has not ended."""
        stat = self._stat(pid)
        return stat is not None and stat[0] not in "ZX"

    def children(self, pid: int) -> list[int]:
        """The running children of a process."""
        found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        stats = {each: self._stat(each) for each in found}
        return [each for each, stat in stats.items() if stat and int(stat[1]) == pid]

    def wait_until_ended(self, *pids: int, seconds: float = 5) -> None:
        """Return when none of them runs; fail when one still does."""
        end = time.monotonic() + seconds
        while running := [pid for pid in pids if self.running(pid)]:
            assert time.monotonic() < end, f"{running} still run"
            time.sleep(0.02)


@pytest.fixture
def processes() -> Processes:
    """Which processes run."""
    return Processes()


@pytest.fixture
def worker_env() -> dict[str, str]:
    """The environment of a worker that sees no GPU."""
    path = os.pathsep.join(sys.path)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def worker_config(tmp_path: Path) -> Iterator[Callable[[int], WorkerConfig]]:
    """A configuration that the worker refuses: there is no GPU to be seen."""
    settings = make_settings("m", device="cuda", tensor_parallel_size=2)
    writer = PlanWriter(1)
    yield lambda reports: WorkerConfig(
        1, str(tmp_path / "store"), str(tmp_path), settings, writer.reader(0), reports
    )
    writer.close()
