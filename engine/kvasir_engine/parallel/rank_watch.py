"""The thread that starts the processes of the other ranks and watches them.

It makes no CUDA call and takes part in no collective, so it runs on while the main thread is
stuck in one.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from kvasir_engine.parallel.protocol import Progress, RankError
from kvasir_engine.parallel.stopped_process import LOOK_SECONDS, StoppedProcess
from kvasir_engine.parallel.worker_process import WorkerProcess

KILL_AFTER_SECONDS = 3.0
"""Less than whoever stops rank 0 gives it."""
BLAME_SECONDS = 1.0
"""Seconds after an error in rank 0 in which the death that caused it may still be noticed."""

log = logging.getLogger(__name__)


class RankWatch:
    """Start the workers that `make` gives and see to their end.

    The first death ends the others; then `on_death` is called with the reason, on the watching
    thread.
    """

    def __init__(
        self, make: Sequence[Callable[[], WorkerProcess]], on_death: Callable[[Exception], None]
    ) -> None:
        self._make = make
        self._on_death = on_death
        self._changed = threading.Condition()
        self._workers: list[WorkerProcess] = []
        self._failure: Exception | None = None
        self._kill_at: float | None = None
        self._wake = os.eventfd(0)
        self._started = threading.Event()
        # A thread of its own starts them, since they are killed when the thread that did ends.
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, by rank from 1."""
        return [worker.pid for worker in self._workers]

    def check(self) -> None:
        """Raise why the ranks cannot be used any more, if so."""
        if self._failure is not None:
            raise self._failure

    @property
    def failed(self) -> bool:
        """True once the ranks cannot be used any more, other than by `close`."""
        return self._failure is not None

    def wait_for(self, progress: Progress) -> None:
        """Return when every worker has reported `progress`. Raises the reason when one ends."""

        def reached() -> bool:
            return all(worker.progress is progress for worker in self._workers)

        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or reached())
        self.check()

    def blame(self, error: BaseException) -> BaseException:
        """Return why rank 0 met `error`: the death of a worker if one dies within BLAME_SECONDS,
        else `error`.

        The ranks are of no use afterwards.
        """
        with self._changed:
            if self._changed.wait_for(lambda: self._failure is not None, BLAME_SECONDS):
                return self._failure or error
            self._failure = RankError(
                f"the ranks stopped after an earlier {type(error).__name__}: {error}"
            )
        self.close(0)
        return error

    def close(self, seconds: float = KILL_AFTER_SECONDS) -> None:
        """Wait for the workers to end, and kill those that still run after `seconds`."""
        with self._changed:
            if self._kill_at is not None:
                return
            self._kill_at = time.monotonic() + seconds
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    # -- the watching thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for make in self._make:
                self._workers.append(make())
            self._started.set()
            failure = self._first_death()
        except Exception as error:
            failure = error
        if failure is not None:
            self._announce(failure)
        for worker in self._workers:
            worker.wait(max(0.0, (self._kill_at or 0.0) - time.monotonic()))
            worker.close()

    def _first_death(self) -> Exception | None:
        """Return why the first worker ended or was stopped; None once `close` was called."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        for worker in self._workers:
            poller.register(worker.ended, select.POLLIN)
            poller.register(worker.reports, select.POLLIN)
        looks = {worker.rank: StoppedProcess(worker.pid) for worker in self._workers}
        look_at = time.monotonic()
        while self._kill_at is None:
            ready = dict(poller.poll(1000 * LOOK_SECONDS))
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_SECONDS
                stopped = [rank for rank, process in looks.items() if process.look()]
                if stopped and self._kill_at is None:
                    return RankError(f"tensor-parallel rank {stopped[0]} was stopped (SIGSTOP)")
            for worker in self._workers:
                if worker.reports in ready:
                    with self._changed:
                        worker.read_reports()
                        self._changed.notify_all()
                    if ready[worker.reports] & select.POLLHUP:
                        poller.unregister(worker.reports)
                if self._kill_at is None and (worker.failure or worker.ended in ready):
                    return worker.reason()
        return None

    def _announce(self, failure: Exception) -> None:
        with self._changed:
            if self._kill_at is not None:
                return
            self._failure = failure
            self._started.set()
            self._changed.notify_all()
        for worker in self._workers:
            worker.kill()
            if worker.failure is not None and isinstance(failure, RankError):
                log.error("%s\n%s", failure, worker.failure.traceback)
        self._on_death(failure)
