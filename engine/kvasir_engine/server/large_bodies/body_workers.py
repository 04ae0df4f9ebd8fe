"""The body workers of one API process: few, started when the first large body comes."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack

from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.server.large_bodies.body_worker_process import (
    BodyWorkerProcess,
    WorkerEndedError,
)
from kvasir_engine.server.large_bodies.shared_body import ByteBudget, SharedBody
from kvasir_engine.server.large_bodies.worker_messages import (
    BodyRefusal,
    Job,
    Result,
    Setup,
    decode_result,
)

log = logging.getLogger(__name__)

NUM_WORKERS = 2
HUGE_BODY_BYTES = 4 * 2**20
"""Bodies above this may not have the last worker, so that others need not wait for them."""
MAX_SECONDS = 30.0
"""Seconds that a worker may take for one body."""
ABANDONED_SECONDS = 1.0
"""Seconds that it may still take when nobody waits for the result any more."""
BODIES_HELD = 4
"""Bodies of the largest size that an API process holds at once."""


class _Work:
    """A job on its way."""

    def __init__(self, job: Job, body: SharedBody, report: Callable[[PromptReport], None]) -> None:
        self.job = job
        self.body = body
        self.report = report
        self.result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.limit: asyncio.Timeout | None = None

    def answer(self, content: bytes) -> None:
        self.settle(decode_result(content))

    def settle(self, result: Result) -> None:
        if not self.result.done():
            self.result.set_result(result)
        self.body.close()

    def abandon(self) -> None:
        if self.limit is None:
            self.body.close()  # no worker has it
        elif not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + ABANDONED_SECONDS)


class BodyWorkers:
    """Give bodies to workers; at most NUM_WORKERS run at once."""

    def __init__(
        self, setup: Callable[[], Setup], max_body_bytes: int, *, max_seconds: float = MAX_SECONDS
    ) -> None:
        """`setup` is asked for when a worker starts."""
        self.budget = ByteBudget(BODIES_HELD * max_body_bytes)
        self._setup = setup
        self._max_seconds = max_seconds
        self.idle: list[BodyWorkerProcess] = []
        """Workers without a body."""
        self._slots = asyncio.Semaphore(NUM_WORKERS)
        self._huge_slots = asyncio.Semaphore(NUM_WORKERS - 1)
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(
        self,
        job: Job,
        body: SharedBody,
        report: Callable[[PromptReport], None] = lambda report: None,
    ) -> Result:
        """Return what a worker made of `body`, which is closed then.

        Cancelled, the job is dropped: a worker that is at it gets ABANDONED_SECONDS.
        """
        work = _Work(job, body, report)
        task = asyncio.create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Not in the task: one that is cancelled before it begins never runs.
        task.add_done_callback(lambda _: work.settle(_unavailable("it is closing")))
        try:
            return await work.result
        except asyncio.CancelledError:
            work.abandon()
            raise

    async def close(self) -> None:
        """End the workers and what they do."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self.idle:
            await self.idle.pop().close()

    async def _run(self, work: _Work) -> None:
        try:
            async with AsyncExitStack() as slots:
                if work.body.size > HUGE_BODY_BYTES:
                    await slots.enter_async_context(self._huge_slots)
                await slots.enter_async_context(self._slots)
                if not work.result.done():
                    await self._on_worker(work)
        except WorkerEndedError as error:
            log.warning("a body worker ended (%s)", error)
            work.settle(_ended(error))
        except TimeoutError:
            work.settle(_too_slow(self._max_seconds))
        except OSError as error:
            log.error("a body worker could not be started: %s", error)
            work.settle(_unavailable("it cannot start the process that reads large ones"))

    async def _on_worker(self, work: _Work) -> None:
        worker = self.idle.pop() if self.idle else BodyWorkerProcess.start(self._setup())
        free = False
        try:
            async with asyncio.timeout(self._max_seconds) as work.limit:
                free = await worker.work(work.job, work.body, work.answer, work.report)
        finally:
            work.limit = None
            if free:
                self.idle.append(worker)
            else:
                await worker.close()


def _ended(error: WorkerEndedError) -> BodyRefusal:
    if error.status == -signal.SIGABRT:  # how a library ends that gets no memory
        return too_much_memory()
    return _unavailable("the process that read it has ended")


def too_much_memory() -> BodyRefusal:
    """Return the refusal of a body that takes more memory than a worker may have."""
    sentence = "Reading the body takes too much memory; send fewer or shorter values."
    return BodyRefusal(400, sentence, None, "body_too_complex", {})


def _too_slow(seconds: float) -> BodyRefusal:
    sentence = f"Reading the body took more than {seconds:g} s; send fewer or shorter values."
    return BodyRefusal(400, sentence, None, "body_too_complex", {})


def _unavailable(why: str) -> BodyRefusal:
    sentence = f"The server could not read the body: {why}; try again."
    return BodyRefusal(503, sentence, None, "body_not_read", {"retry-after": "1"})
