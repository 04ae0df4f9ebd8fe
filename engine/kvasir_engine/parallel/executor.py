"""Rank 0's hold on the other ranks: their processes, the plans they replay, their end."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kvasir_engine.parallel.plan_channel import PlanWriter
from kvasir_engine.parallel.plan_codec import encode, encode_masks
from kvasir_engine.parallel.protocol import Progress, WorkerConfig
from kvasir_engine.parallel.rank_watch import RankWatch
from kvasir_engine.parallel.worker_process import WorkerProcess
from kvasir_engine.settings import EngineSettings
from kvasir_engine.step_plan import Int32Array, StepPlan

OnRankDeath = Callable[[Exception], None]
"""Called on a thread of its own, with the reason, when a rank has ended; the other ranks but 0
have then been killed, and rank 0 may be stuck in a collective."""

STUCK_SECONDS = 3.0


class Executor:
    """Ranks 1 and up of a tensor-parallel group, as processes of this one.

    `on_death` by default leaves a process that can go on alive, whose calls then raise the reason,
    and ends one whose step does not return.
    """

    def __init__(
        self,
        settings: EngineSettings,
        model_dir: Path,
        *,
        step_bytes: int = 0,
        on_death: OnRankDeath | None = None,
    ) -> None:
        """Start them; returns before they are ready. `step_bytes` as in `init_tensor_parallel`."""
        self._settings = settings
        self.step_bytes = step_bytes
        self._model_dir = model_dir
        self._directory = tempfile.TemporaryDirectory(
            prefix="kvasir-ranks-", ignore_cleanup_errors=True
        )
        self.store = Path(self._directory.name) / "store"
        ranks = range(1, settings.tensor_parallel_size)
        self._plans = PlanWriter(len(ranks))
        self._busy = threading.Lock()
        self._closed = False
        self._before_close: Callable[[], None] | None = None
        self._on_death = on_death or self._end_if_stuck
        self._watch = RankWatch([partial(self._start, rank) for rank in ranks], self._died)
        # An interpreter that ends with ranks alive would meet them half torn down.
        atexit.register(self.close)

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, from rank 1."""
        return self._watch.pids

    @contextmanager
    def together(self) -> Iterator[None]:
        """Surround whatever rank 0 does together with the others.

        An error in it is the last: the ranks have lost each other. Raises the reason if a rank has
        ended, also in place of the error that its end has caused here.
        """
        with self._busy:
            self._watch.check()
            try:
                yield
            except BaseException as error:
                reason = self._watch.blame(error)
                if reason is error:
                    raise
                raise reason from error

    def wait_for(self, progress: Progress) -> None:
        """Return when all ranks have come so far. Raises the reason when one ends instead."""
        self._watch.wait_for(progress)

    def send(self, plan: StepPlan) -> None:
        """Have the other ranks run `plan`."""
        self._plans.send(encode(plan))

    def send_masks(self, masks: Int32Array) -> None:
        """Have the other ranks sample by `masks` what the last plan says is masked."""
        self._plans.send(encode_masks(masks))

    def before_close(self, free: Callable[[], None]) -> None:
        """Have `free` called before the group is left: what it frees refers to the group."""
        self._before_close = free

    def close(self) -> None:
        """End the other ranks and leave the group. Idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._plans.close()
        try:
            self._leave()
        finally:
            self._watch.close()
            self._directory.cleanup()

    def _leave(self) -> None:
        failed = self._watch.failed
        if self._before_close is not None and not failed:
            self._before_close()
        if self._settings.device == "sim":
            return
        # Not before now: the workers start while this process still imports torch.
        from kvasir_engine.device.collectives import destroy_tensor_parallel

        destroy_tensor_parallel(failed=failed)

    def _start(self, rank: int) -> WorkerProcess:
        def config(reports: int) -> WorkerConfig:
            plans = self._plans.reader(rank - 1)
            files = str(self.store), str(self._model_dir)
            return WorkerConfig(rank, *files, self._settings, plans, reports, self.step_bytes)

        return WorkerProcess(rank, config, {**_threads(self._settings), **os.environ})

    def _died(self, reason: Exception) -> None:
        # The process may be ended now, without leaving anything behind.
        self._directory.cleanup()
        self._on_death(reason)

    def _end_if_stuck(self, reason: Exception) -> None:
        if self._busy.acquire(timeout=STUCK_SECONDS):
            self._busy.release()
            return
        sys.stderr.write(f"{reason}\n")
        sys.stderr.flush()
        os._exit(1)


def _threads(settings: EngineSettings) -> dict[str, str]:
    """Ranks share the processors; more threads than those would wait for each other."""
    share = len(os.sched_getaffinity(0)) // settings.tensor_parallel_size
    return {"OMP_NUM_THREADS": str(max(1, share))}
