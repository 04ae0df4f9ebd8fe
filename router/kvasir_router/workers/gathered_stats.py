"""The workers' numbers together, for the admin port."""

import asyncio
import os

from kvasir.wire.canary_samples import CanarySamples
from kvasir_router.admin.statistics import Statistics
from kvasir_router.fleet.model import Model
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.scaling.signals import Latencies
from kvasir_router.telemetry.metric_families import Family, text_of
from kvasir_router.workers.process_stats import ProcessStats, Totals
from kvasir_router.workers.replication.publisher import Publisher

_ANSWER_SECONDS = 0.5
"""That a worker has to tell its numbers; then its last ones count."""
GATHER_SECONDS = 10.0
"""Between two times that they are asked for: what a worker counted since is lost with it."""


class GatheredStats(Statistics):
    """Statistics of all workers, which are asked for theirs."""

    def __init__(self, gateway: Gateway, publisher: Publisher) -> None:
        super().__init__(gateway)
        self._publisher = publisher
        self.totals = Totals()
        self.waits: dict[int, dict[str, tuple[int, int]]] = {}
        """By process: requests that wait and their tokens, by model."""
        self._missing: set[int] = set()
        self._all_told = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def gather(self) -> None:
        """Have everybody's present numbers; several callers share one asking."""
        if self._running is None or self._running.done():
            self._running = self._gateway.tasks.run("gathering", self._ask())
        await asyncio.shield(self._running)

    async def keep(self) -> None:
        """Gather now and then, forever."""
        while True:
            await asyncio.sleep(GATHER_SECONDS)
            await self.gather()

    def told(self, pid: int, numbers: ProcessStats) -> None:
        """A worker answered."""
        self.totals.told(pid, numbers)
        self._answered(pid)

    def left(self, pid: int) -> None:
        """A worker's connection is lost."""
        self.waits.pop(pid, None)
        self._answered(pid)

    def bury(self) -> bool:
        """Return True if processes have ended; what they counted stays, for replicas that exist.
        One that has only lost its connection goes on counting."""
        fleet = self._gateway.fleet
        dead = [pid for pid in self.totals.processes if not _lives(pid)]
        replicas = {
            (("model", model.name), ("replica", replica.id)) for model, replica in fleet.replicas()
        }
        for pid in dead:
            self.totals.ended(pid, fleet.models.keys() | {""}, replicas)
        return bool(dead)

    def families(self) -> list[Family]:
        """Return the metrics of all processes, as they were told last."""
        return self.totals.families(super().families())

    def text(self) -> bytes:
        """Return `families` in Prometheus' text format."""
        return text_of(self.families())

    def latencies(self, model: str) -> Latencies:
        """Return a model's latencies in all processes, as they were told last."""
        return self.totals.latencies(model)

    def canary(self, model: Model) -> CanarySamples | None:
        """Return the samples of all processes, as they were told last."""
        return None if model.split is None else self.totals.canary(model.name, model.split.spec.id)

    def waiting(self, model: Model) -> tuple[int, int]:
        """Return how many requests wait in all processes, and their tokens, as told last."""
        told = [waits.get(model.name, (0, 0)) for waits in self.waits.values()]
        return sum(requests for requests, _ in told), sum(tokens for _, tokens in told)

    def _answered(self, pid: int) -> None:
        self._missing.discard(pid)
        if not self._missing:
            self._all_told.set()

    async def _ask(self) -> None:
        self._missing = {worker.pid for worker in self._publisher.workers}
        self._all_told.clear()
        if self._missing:
            self._publisher.ask()
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._all_told.wait()
            except TimeoutError:
                pass  # one that stands still has its last numbers in the sums


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
