"""Interface to the core for whoever holds a tokenizer: AsyncLLM and the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from kvasir_engine.messages import CoreInfo
from kvasir_engine.request import EngineRequest, SampleDelta
from kvasir_engine.scheduler.counters import SchedulerLoad


class RequestRejectedError(Exception):
    """The core did not admit a request. `status` is HTTP's: 400, 429 (queue full) or 503."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.retry_after = retry_after


class EngineDeadError(Exception):
    """The core has ended; no request will be answered any more."""


@dataclass(frozen=True, slots=True)
class LoadSnapshot(SchedulerLoad):
    """The whole engine's load, the same from every API process."""

    step_age_seconds: float
    """Age of the oldest launched, unfinished step; 0 when idle."""
    turn_age_seconds: float = 0.0
    """Seconds for which the core has been in one turn of its loop, in a step or not; 0 when it
    sleeps because nothing is to be done."""


class CoreClient(Protocol):
    """Connection of one API process to the core."""

    async def wait_ready(self) -> CoreInfo:
        """Return once the core serves; raise EngineDeadError when it ended instead."""
        ...

    async def submit(self, request: EngineRequest) -> AsyncIterator[list[SampleDelta]]:
        """Admit `request` (its handle is set here) and return the stream of its deltas.

        Returns when the core has accepted it, so headers may be sent; raises
        RequestRejectedError or EngineDeadError otherwise. Each item is every delta that has
        arrived since the last, in order (a slow reader gets several at once, memory stays
        bounded by the request's own length). The stream ends after the last sample's
        finish_reason. Closing it early (`aclose`) aborts the request.
        """
        ...

    def finish_sample(self, request: EngineRequest, sample: int) -> None:
        """A stop string ended sample `sample`: the core frees it and sends nothing more of it."""
        ...

    def reset_prefix_cache(self) -> None:
        """Let the core forget all cached prompt blocks, before it admits what is submitted next."""
        ...

    def load(self) -> LoadSnapshot:
        """The engine's load now; O(1), reads shared memory."""
        ...

    async def drain(self) -> None:
        """Admit nothing more; return when nothing runs."""
        ...

    @property
    def alive(self) -> bool:
        """False once the core has ended."""
        ...

    def close(self) -> None:
        """Leave the core; aborts what this client still has running."""
        ...
