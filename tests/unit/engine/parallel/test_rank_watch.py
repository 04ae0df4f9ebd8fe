"""The watch over real processes that report as workers do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from kvasir_engine.parallel.protocol import Progress, RankError, Report
from kvasir_engine.parallel.rank_watch import RankWatch
from kvasir_engine.parallel.worker_process import WorkerProcess
from kvasir_engine.settings import SettingsError

READY = Report(Progress.READY)
REFUSED = Report(Progress.FAILED, "SettingsError", "lower --max-model-len", "Traceback")


class ShellWorker(WorkerProcess):
    """A shell that reports, runs a command and ends."""

    def __init__(self, rank: int, report: Report | None, command: str) -> None:
        self.rank = rank
        self.progress = None
        self.failure = None
        self._unread = b""
        self.reports, writing = os.pipe()
        os.set_blocking(self.reports, False)
        if report is not None:
            os.write(writing, report.encode())
        self._process = subprocess.Popen(["sh", "-c", command], pass_fds=(writing,))
        os.close(writing)
        self.ended = os.pidfd_open(self._process.pid)


@pytest.fixture
def watch():
    """watch((report, command), ...): a watch and the deaths it has told."""
    made: list[RankWatch] = []

    def start(*workers: tuple[Report | None, str]) -> tuple[RankWatch, list[Exception]]:
        deaths: list[Exception] = []
        makes: list[Callable[[], WorkerProcess]] = [
            partial(ShellWorker, rank, *worker) for rank, worker in enumerate(workers, 1)
        ]
        made.append(RankWatch(makes, deaths.append))
        return made[-1], deaths

    yield start
    for each in made:
        each.close(0)


SLEEP = "exec sleep 600"


def test_it_waits_until_all_have_come_so_far(watch) -> None:
    ranks, deaths = watch((READY, SLEEP), (READY, SLEEP))
    ranks.wait_for(Progress.READY)
    ranks.check()
    assert len(set(ranks.pids)) == 2
    assert deaths == []


@pytest.mark.slow
def test_closing_waits_for_those_that_end_and_kills_the_others(watch, processes) -> None:
    ranks, deaths = watch((READY, "sleep 0.2"), (READY, SLEEP))
    ranks.close(1)
    assert not any(map(processes.running, ranks.pids))
    ranks.close(1)
    assert deaths == []


def test_the_first_death_ends_all_and_is_told_once(watch, processes) -> None:
    ranks, deaths = watch((READY, SLEEP), (READY, "exit 3"))
    with pytest.raises(RankError, match=r"rank 2 ended \(exit status 3\)"):
        ranks.wait_for(Progress.IMPORTED)  # which none ever reports again
    processes.wait_until_ended(*ranks.pids)
    ranks.close()
    with pytest.raises(RankError, match="rank 2"):
        ranks.check()
    assert [str(death) for death in deaths] == ["tensor-parallel rank 2 ended (exit status 3)"]


def test_a_reported_failure_is_the_reason_before_its_process_ends(watch, processes) -> None:
    ranks, deaths = watch((READY, SLEEP), (REFUSED, SLEEP))
    with pytest.raises(SettingsError, match="lower --max-model-len"):
        ranks.wait_for(Progress.READY)
    processes.wait_until_ended(*ranks.pids)
    ranks.close()
    assert [type(death) for death in deaths] == [SettingsError]


def test_a_worker_that_cannot_be_started_is_a_death() -> None:
    def broken() -> WorkerProcess:
        raise OSError("no more processes")

    deaths: list[Exception] = []
    ranks = RankWatch([broken], deaths.append)
    with pytest.raises(OSError, match="no more processes"):
        ranks.wait_for(Progress.READY)
    ranks.close()
    assert [str(death) for death in deaths] == ["no more processes"]


def test_rank_0s_error_is_blamed_on_a_death_that_follows_it(watch) -> None:
    ranks, _ = watch(
        (READY, "sleep 0.1; exit 1"),
    )
    reason = ranks.blame(RuntimeError("connection closed by peer"))
    assert str(reason) == "tensor-parallel rank 1 ended (exit status 1)"


def test_rank_0s_own_error_is_its_own_and_the_last(watch, processes, monkeypatch) -> None:
    monkeypatch.setattr("kvasir_engine.parallel.rank_watch.BLAME_SECONDS", 0.05)
    ranks, deaths = watch((READY, SLEEP))
    error = KeyError("mine")
    assert ranks.blame(error) is error
    assert not any(map(processes.running, ranks.pids))
    with pytest.raises(RankError, match="stopped after an earlier KeyError: 'mine'"):
        ranks.check()
    assert deaths == []
