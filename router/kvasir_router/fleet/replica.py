"""One replica of a model: its health as last seen, and what it has in flight."""

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from kvasir_router.discovery.specs import Departure, ReplicaSpec
from kvasir_router.fleet.circuit_breaker import BreakerState, CircuitBreaker
from kvasir_router.fleet.engine_slots import EngineSlots
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.prefill_rate import PrefillRate
from kvasir_router.fleet.replica_load import LoadReport, ReplicaLoad
from kvasir_router.wire.upstream_pool import ConnectionPool


class Health(Enum):
    """Health as probes and requests last said. Only READY replicas get requests, unless so many
    are SUSPECT that the observation itself is doubted (see `kvasir_router.fleet.model`)."""

    STARTING = "starting"
    """Has never been ready."""

    READY = "ready"

    NOT_READY = "not_ready"
    """Alive but not accepting requests: draining or asleep."""

    SUSPECT = "suspect"
    """A probe or request failed other than by refusal."""

    DOWN = "down"
    """It refuses connections."""


class LoadStreamState(Enum):
    """State last reported on the load stream."""

    NONE = "none"
    """There is no stream, or none has spoken since the engine's start."""

    READY = "ready"

    NOT_READY = "not_ready"
    """Draining or asleep."""

    LEAVING = "leaving"
    """It says that it ends within seconds, as for a fault of its GPU."""

    SILENT = "silent"
    """It spoke, and stopped."""


class Watcher(Protocol):
    """A request in flight at a replica, or whoever else wants to know."""

    def replica_suspected(self, replica: "Replica") -> None:
        """The replica was suspect, and a probe of it failed too: do not wait for it any longer.
        Called for every failed probe from then on. Called too while it gives its streams away, at
        once and for every probe."""


MAX_REST_SECONDS = 600.0
"""However long a server asks to be left alone: a day's quota may be raised before its end."""

_TIMER_SECONDS = 0.05
"""A timer may be early by less."""

_NOTIFIED_PER_TURN = 32
"""Watchers told in one turn of the loop: each may start a request elsewhere."""


class Replica:
    """An engine behind one address."""

    def __init__(
        self,
        spec: ReplicaSpec,
        pool: ConnectionPool,
        max_in_flight: int,
        changed: Callable[[], None],
        engine_queue: int = 0,
    ) -> None:
        self.spec = spec
        self.load = ReplicaLoad()
        self.prefill = PrefillRate()
        self.id = spec.id
        self.pool = pool
        self.authority = pool.authority.encode()
        self.health = Health.STARTING
        self.load_stream_state = LoadStreamState.NONE
        self.watchers: set[Watcher] = set()
        """Told when it does not answer; each adds and removes itself."""
        self.emptied: Callable[[], None] = lambda: None
        """Called when it refuses connections: its process is gone, and its cache with it."""
        self.faulty: Callable[[], None] = lambda: None
        """Called for each attempt that failed by its fault."""
        self.filled = changed
        """Called when it is full, or is no longer, and nothing else has changed."""
        self.breaker = CircuitBreaker()
        self.draining = spec.draining
        self.told_departure = spec.departure
        """Its expected end, as discovery says now."""
        self.adapters = spec.adapters
        """LoRA adapters that it holds; None = all of its model's."""
        self.in_flight = 0
        self.served = 0
        """Requests sent to it since it was found."""
        self.parts = 0
        """Parts of answers that it has sent: its progress, as whoever waits for one sees it."""
        self.failures: Counter[str] = Counter()
        """By reason, since it was found."""
        self.feeds: Counter[str] = Counter()
        """Counts of what happened in its feeds, by a few words, since it was found."""
        self.max_model_len: int | None = None
        """Tokens, as its own /v1/models says."""
        self.served_names: tuple[str, ...] = ()
        """Names that requests may call its model by, as its /v1/models says; empty = unknown."""
        self.serves: ModelIdentity | None = None
        """Identity of what it computes, as its own /v1/models says."""
        self.problem = spec.upstream.problem if spec.upstream else ""
        """Sentence on why it does not serve, if it is an upstream URL's; "" = it does, or its
        health says enough."""
        self._rests_until = 0.0
        self.probe_now = asyncio.Event()
        self._slots = EngineSlots(engine_queue)
        self.load.heard = self._load_heard
        self._max_in_flight = max_in_flight
        self._bound = float(max_in_flight)
        """Requests in flight from which on it is full, if its load is known."""
        self._changed = changed

    def holds(self, adapter: str) -> bool:
        """Return whether it serves the LoRA adapter; "" is the model itself."""
        return not adapter or self.adapters is None or adapter in self.adapters

    @property
    def departure(self) -> Departure:
        """Its expected end, as discovery says, or as itself does."""
        leaving = self.load_stream_state is LoadStreamState.LEAVING
        return Departure.NOW if leaving else self.told_departure

    @property
    def full(self) -> bool:
        """Return whether the replica is at its in-flight maximum or its learned slots plus a small
        queue."""
        if self.in_flight < self._bound:
            return False
        return self.in_flight >= self._max_in_flight or not self.load.stale

    @property
    def capacity(self) -> int:
        """Requests that it runs at once, as far as known, or else may have in flight."""
        return min(self._slots.count or self._max_in_flight, self._max_in_flight)

    @property
    def free(self) -> int:
        """Requests more that it would run now, as far as known."""
        taken = self._slots.taken(self.in_flight) if self._slots.count else self.in_flight
        return max(self.capacity - taken, 0)

    @property
    def rests(self) -> bool:
        """Return whether it has asked to be left alone for a while."""
        return self._rests_until > 0 and self._rests_until > asyncio.get_running_loop().time()

    def rest(self, seconds: float) -> None:
        """Send it nothing for so long: it has said that it takes no more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(seconds, MAX_REST_SECONDS)
        if until > self._rests_until:
            self._rests_until = until
            loop.call_at(until, self._rested)
            self._changed()

    @property
    def ever_ready(self) -> bool:
        return self.health is not Health.STARTING

    @property
    def gives_streams_away(self) -> bool:
        """Return whether it answers, and its streams are to go on elsewhere all the same."""
        return self.departure is Departure.NOW and self.health in (Health.READY, Health.NOT_READY)

    def give_streams_away(self) -> None:
        """Tell the watchers to go on elsewhere, if that is wanted."""
        if self.gives_streams_away:
            self._tell(list(self.watchers))

    def request_probe(self) -> None:
        """Have the replica probed at once."""
        self.probe_now.set()

    def acquire(self) -> None:
        """Count a request, before it is sent. Every `acquire` is followed by one `release`."""
        self.in_flight += 1
        self.served += 1
        if self.breaker.state is not BreakerState.CLOSED:
            self.breaker.started()
            self._changed()
        elif self.in_flight >= self._bound and self.full:
            self.filled()

    def release(self) -> None:
        """The request has left the replica, however it ended."""
        was_full = self.in_flight >= self._bound and self.full
        self.in_flight -= 1
        if self.breaker.state is not BreakerState.CLOSED:
            self.breaker.abandoned()
            self._changed()
        elif was_full:
            self.filled()

    def succeeded(self) -> None:
        """A request was answered."""
        was = self.breaker.state
        self.breaker.succeeded()
        if was is not self.breaker.state:
            self._changed()

    def failed(self, reason: str, health: Health | None = None) -> None:
        """A request failed for `reason`; `health` is what that says of the replica, if anything."""
        self.failures[reason] += 1
        self.faulty()
        pause = self.breaker.failed()
        if pause is not None:
            asyncio.get_running_loop().call_later(pause, self._retry)
        if health is not None:
            self.request_probe()
            if self.ever_ready:
                self._become(health)
        self._changed()

    def observed(self, health: Health) -> None:
        """A probe's verdict. READY needs the load stream's word too, if there is one."""
        if health in (Health.SUSPECT, Health.DOWN) and not self.ever_ready:
            return
        if health is Health.SUSPECT and self.health is Health.SUSPECT:
            self._tell(list(self.watchers))
        if health is Health.READY:
            health = _HEALTH_BY_LOAD_STREAM[self.load_stream_state]
        if health is not self.health:
            self._become(health)
            self._changed()
        self.give_streams_away()

    def heard(self, load_stream_state: LoadStreamState) -> None:
        """Note the load stream's state. A good one is confirmed by a probe at once, a bad one
        counts at once."""
        if load_stream_state is self.load_stream_state:
            return
        self.load_stream_state = load_stream_state
        self.request_probe()
        if self.health is Health.READY and load_stream_state is not LoadStreamState.READY:
            self.health = _HEALTH_BY_LOAD_STREAM[load_stream_state]
            self._changed()
        if load_stream_state is LoadStreamState.LEAVING:
            self.give_streams_away()

    def _become(self, health: Health) -> None:
        if health is Health.DOWN and self.health is not Health.DOWN:
            self.load_stream_state = LoadStreamState.NONE
            self.emptied()
        elif self.health is Health.DOWN and health is Health.READY:
            self.breaker.reset()
        self.health = health

    def _tell(self, watchers: list[Watcher]) -> None:
        """Notify the remaining watchers, a few per event-loop turn."""
        for watcher in watchers[-_NOTIFIED_PER_TURN:]:
            if watcher in self.watchers:
                watcher.replica_suspected(self)
        del watchers[-_NOTIFIED_PER_TURN:]
        if watchers:
            asyncio.get_running_loop().call_soon(self._tell, watchers)

    def _load_heard(self, report: LoadReport) -> None:
        was_full = self.in_flight >= self._bound
        self._slots.reported(report.running, report.waiting, self.in_flight)
        self._bound = min(self._slots.bound, self._max_in_flight)
        if was_full is not (self.in_flight >= self._bound):
            self.filled()

    def _rested(self) -> None:
        if self._rests_until - asyncio.get_running_loop().time() < _TIMER_SECONDS:
            self._rests_until = 0.0
            self._changed()

    def _retry(self) -> None:
        self.breaker.retry()
        self._changed()


_HEALTH_BY_LOAD_STREAM = {
    LoadStreamState.NONE: Health.READY,
    LoadStreamState.READY: Health.READY,
    LoadStreamState.NOT_READY: Health.NOT_READY,
    LoadStreamState.LEAVING: Health.NOT_READY,
    LoadStreamState.SILENT: Health.SUSPECT,
}
"""The health of a replica whose probe succeeded."""
