"""One replica of a model: its health as last seen, and what it has in flight."""

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum

from kvasir_router.discovery.base import ReplicaSpec
from kvasir_router.fleet.breaker import Breaker, BreakerState
from kvasir_router.fleet.load import ReplicaLoad
from kvasir_router.proxy.pool import ConnectionPool


class Health(Enum):
    """What probes and requests last said. Only READY replicas get requests, unless so many are
    SUSPECT that the observation itself is doubted (see `kvasir_router.fleet.model`)."""

    STARTING = "starting"
    """Has never been ready."""

    READY = "ready"

    NOT_READY = "not_ready"
    """It answers and says no: draining or asleep."""

    SUSPECT = "suspect"
    """A probe or request failed other than by refusal."""

    DOWN = "down"
    """It refuses connections."""


class Replica:
    """An engine behind one address."""

    def __init__(
        self,
        spec: ReplicaSpec,
        pool: ConnectionPool,
        max_in_flight: int,
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.load = ReplicaLoad()
        self.id = spec.id
        self.pool = pool
        self.authority = pool.authority.encode()
        self.health = Health.STARTING
        self.breaker = Breaker()
        self.draining = spec.draining
        self.in_flight = 0
        self.served = 0
        """Requests sent to it since it was found."""
        self.failures: Counter[str] = Counter()
        """By reason, since it was found."""
        self.max_model_len: int | None = None
        """Tokens, as its own /v1/models says."""
        self.probe_now = asyncio.Event()
        self._max_in_flight = max_in_flight
        self._changed = changed

    @property
    def full(self) -> bool:
        return self.in_flight >= self._max_in_flight

    @property
    def ever_ready(self) -> bool:
        return self.health is not Health.STARTING

    def acquire(self) -> None:
        """Count a request, before it is sent. Every `acquire` is followed by one `release`."""
        self.in_flight += 1
        self.served += 1
        if self.breaker.state is not BreakerState.CLOSED:
            self.breaker.started()
            self._changed()
        elif self.full:
            self._changed()

    def release(self) -> None:
        """The request has left the replica, however it ended."""
        was_full = self.full
        self.in_flight -= 1
        if self.breaker.state is not BreakerState.CLOSED:
            self.breaker.abandoned()
            self._changed()
        elif was_full:
            self._changed()

    def succeeded(self) -> None:
        """A request was answered."""
        was = self.breaker.state
        self.breaker.succeeded()
        if was is not self.breaker.state:
            self._changed()

    def failed(self, reason: str, health: Health | None = None) -> None:
        """A request failed for `reason`; `health` is what that says of the replica, if anything."""
        self.failures[reason] += 1
        pause = self.breaker.failed()
        if pause is not None:
            asyncio.get_running_loop().call_later(pause, self._retry)
        if health is not None:
            self.probe_now.set()
            if self.ever_ready:
                self.health = health
        self._changed()

    def observed(self, health: Health) -> None:
        """A probe's verdict."""
        if health in (Health.SUSPECT, Health.DOWN) and not self.ever_ready:
            return
        if health is not self.health:
            self.health = health
            self._changed()

    def _retry(self) -> None:
        self.breaker.retry()
        self._changed()
