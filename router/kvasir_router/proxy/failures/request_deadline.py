"""Times at which a request under way ends with an error: its own, and its access token's."""

import asyncio
import time
from math import inf

from kvasir_router.proxy.answer_target import AnswerTarget
from kvasir_router.proxy.failures import failure_responses
from kvasir_router.telemetry.model_metrics import ModelMetrics

_MAX_WAIT_SECONDS = 3600.0
"""Clocks of the day are set: the time left of a token is looked at again after so long."""


class RequestDeadline:
    """Deadline of one request. Between `start` and `cancel` its target fails once at most; only the
    timer holds the target, so no circle is left when the request has ended."""

    __slots__ = ("_due", "_ends", "_metrics", "_seconds", "_timer")

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._seconds = 0.0
        self._due = inf
        self._ends = inf
        self._timer: asyncio.TimerHandle | None = None

    def start(
        self, target: AnswerTarget, seconds: float | None, received: float, ends: float
    ) -> None:
        """`seconds` that the request may take, None = any, since it was `received` (monotonic);
        `ends`: its token's end in Unix seconds, inf = none."""
        if seconds:
            self._seconds = seconds
            self._due = received + seconds
        self._ends = ends
        self._wait(target)

    def cancel(self) -> None:
        """Let the request go on, however long it takes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, target: AnswerTarget) -> None:
        if self._due == self._ends == inf:
            return
        left, valid = self._due - time.monotonic(), self._ends - time.time()
        seconds = max(min(left, valid, _MAX_WAIT_SECONDS), 0.0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look, target)

    def _look(self, target: AnswerTarget) -> None:
        self._timer = None
        if time.monotonic() >= self._due:
            self._metrics.deadlines += 1
            answer = failure_responses.too_late(self._seconds)
        elif time.time() >= self._ends:
            answer = failure_responses.token_expired()
        else:
            self._wait(target)
            return
        try:
            target.fail(answer)
        except Exception as error:
            target.defect(error)
