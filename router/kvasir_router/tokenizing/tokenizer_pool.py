"""The tokenising processes, and what each has to do."""

import asyncio
import sys
import time
from collections.abc import Callable

import structlog

from kvasir_router.tasks import SupervisedTasks
from kvasir_router.tokenizing.job_messages import LENGTH_BYTES, Job, Made, decode_made, frame

MAX_WAITING = 64
"""Jobs at one process; more are not taken."""
MAX_WAITING_BYTES = 16 * 2**20
"""Maximum bytes of the bodies of one process's jobs."""
STUCK_SECONDS = 60.0
"""Seconds on one job, after which a process is ended. A chat template alone may take 20 s to be
refused, and a tokenizer longer to come from the Hub than to be read."""

_RESTART_SECONDS = 1.0
_AFFINITY = 2

_log = structlog.get_logger("kvasir_router.tokenizing")

Answered = Callable[[Made | None], None]
"""Called once with the answer; None when its process ended before."""


class TokenizerProcess:
    """Tokenising process, started again when it ends. Jobs are answered in their order.

    `started` is called whenever there is a new process, which knows nothing yet.
    """

    def __init__(
        self, started: Callable[["TokenizerProcess"], None], tasks: SupervisedTasks
    ) -> None:
        self._started = started
        self._process: asyncio.subprocess.Process | None = None
        self._jobs: dict[int, tuple[Answered, float, int]] = {}
        """Number -> whom to tell, since when, and its bytes; in the order of sending."""
        self._bytes = 0
        self._next = 0
        self._tasks = tasks
        self._tasks.keep("tokenizer process", self._run)

    @property
    def waiting(self) -> int:
        """Jobs that are not answered yet."""
        return len(self._jobs)

    def send(self, job: Job, answered: Answered) -> bool:
        """False when it has enough to do, or does not run."""
        self._check_stuck()
        process = self._process
        full = len(self._jobs) >= MAX_WAITING or self._bytes > MAX_WAITING_BYTES
        if full or process is None or process.stdin is None or process.stdin.is_closing():
            return False
        job.number = self._next
        self._next += 1
        content = frame(job)
        self._jobs[job.number] = answered, time.monotonic(), len(content)
        self._bytes += len(content)
        process.stdin.write(content)
        return True

    async def stop(self) -> None:
        """End it."""
        await self._tasks.stop()

    async def _run(self) -> None:
        while True:
            # `-m` and not multiprocessing: a fork would copy the loop, a spawn would pickle
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kvasir_router.tokenizing.tokenizer_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self._process = process
            try:
                self._started(self)
                await self._listen(process)
            finally:
                self._process = None
                if process.returncode is None:
                    process.kill()
                self._end_jobs()
                await process.wait()
            _log.warning("a tokenising process ended", status=process.returncode)
            await asyncio.sleep(_RESTART_SECONDS)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        stream = process.stdout
        while stream is not None:
            try:
                length = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "little")
                made = decode_made(await stream.readexactly(length))
            except asyncio.IncompleteReadError:
                return
            answered, _, size = self._jobs.pop(made.number)
            self._bytes -= size
            self._tell(answered, made)

    def _end_jobs(self) -> None:
        jobs, self._jobs, self._bytes = self._jobs, {}, 0
        for answered, _, _ in jobs.values():
            self._tell(answered, None)

    def _tell(self, answered: Answered, made: Made | None) -> None:
        try:
            answered(made)
        except Exception as error:  # the other prompts are told theirs
            self._tasks.defect("tokenizing", error)

    def _check_stuck(self) -> None:
        first = next(iter(self._jobs.values()), None)
        process = self._process
        if process is not None and first and time.monotonic() - first[1] > STUCK_SECONDS:
            process.kill()


class TokenizerPool:
    """Pool of tokenising processes, started when the first tokenizer is wanted."""

    def __init__(self, processes: int, tasks: SupervisedTasks) -> None:
        self._count = processes
        self._supervised = tasks
        self._processes: list[TokenizerProcess] = []
        self._tokenizers: dict[str, Answered] = {}

    def load(self, tokenizer: str, answered: Answered) -> None:
        """Have every process load a tokenizer before the first prompt needs it. `answered` is told
        by each of them."""
        self._tokenizers[tokenizer] = answered
        if not self._processes:
            self._processes = [
                TokenizerProcess(self._load_all, self._supervised.child())
                for _ in range(self._count)
            ]
        for process in self._processes:
            process.send(Job(0, tokenizer), answered)

    def send(self, job: Job, affinity: int, answered: Answered) -> bool:
        """Give a job to the process that `affinity` stands for, whose cache may have the beginning
        of its text, or to another one that has less to do. False when none takes it."""
        processes = self._processes
        favourite = processes[affinity % len(processes)]
        idlest = min(processes, key=lambda each: each.waiting)
        chosen = favourite if favourite.waiting <= idlest.waiting + _AFFINITY else idlest
        return chosen.send(job, answered)

    async def stop(self) -> None:
        """End all."""
        processes, self._processes = self._processes, []
        for process in processes:
            await process.stop()

    def _load_all(self, process: TokenizerProcess) -> None:
        for tokenizer, answered in self._tokenizers.items():
            process.send(Job(0, tokenizer), answered)
