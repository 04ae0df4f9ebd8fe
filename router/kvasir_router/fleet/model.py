"""One model: its replicas, and which of them may take a request now."""

import time
from collections.abc import Callable, Sequence
from math import ceil

import structlog

from kvasir_router.discovery.specs import Departure, EngineKind, ModelSpec
from kvasir_router.fleet.canary.split import CanarySplit
from kvasir_router.fleet.choice import Choice, Kept
from kvasir_router.fleet.circuit_breaker import BreakerState
from kvasir_router.fleet.hedge_delay import HedgeDelay
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.fleet.retry_budget import RetryBudget
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage

_log = structlog.get_logger("kvasir_router.policy")

_UNAVAILABLE = (Health.STARTING, Health.NOT_READY)

RESERVED_SECONDS = 0.1
"""For so long the choice made for a request that waits is not made again. Up to 32 requests are
looked at for each place that becomes free, and a choice for each of them would cost more than all
else; in this time loads change little beside what a missed hit costs."""

MIN_RESERVED_SLOTS = 6
"""Minimum of reserved slots, but a quarter of the capacity at most. Requests that come at random
and use half of what becomes free find n free slots all taken once in 2^n times, whatever the
capacity: 4 slots, a tenth of 32, let one in 16 wait."""

ReplicaKey = tuple[str, str, int]
"""Id, host, port: what makes two specs the same engine."""


class PolicyError(Exception):
    """The policy raised instead of choosing; the log says what."""


class Model:
    """Keep the list of usable replicas, made anew when a replica changes, not for each request."""

    def __init__(self, spec: ModelSpec, policy: Policy, created: int) -> None:
        self.spec = spec
        self.name = spec.name
        self.split: CanarySplit | None = None if spec.split is None else CanarySplit(spec.split)
        """Canary that gets a part of the requests."""
        self.policy = policy
        self.created = created
        """Unix seconds."""
        self.budget = RetryBudget()
        self.hedge_delay = HedgeDelay()
        self.replicas: dict[ReplicaKey, Replica] = {}
        self.serving: list[str] = []
        """Ids of the replicas that are ready."""
        self.usable: list[Replica] = []
        """Replicas that may take a request now."""
        self._serviceable: list[Replica] = []
        """Replicas that might take one if they had room: `usable` and those that are full."""
        self._some_leave = False
        self.identity: ModelIdentity | None = None
        """Model that its Kvasir engines say that they serve; of several, the first in order, so
        that all routers take the same. None while none has said it."""
        self.identity_changed: Callable[[], None] = lambda: None
        self.has_room = False
        """True if a replica that is not down may take a request now."""
        self.room: Callable[[], None] = lambda: None
        """Called when there is room after there was none."""
        self.policy_raised: Callable[[], None] = lambda: None
        """Called when the policy raised, after the log has said so."""

    @property
    def sink(self) -> BlockSink | None:
        """Receiver of engines' events for the policy."""
        return self.policy.sink

    @property
    def names(self) -> frozenset[str]:
        """Names that clients may call it by, and that its replicas have to know."""
        return frozenset((self.name, *self.spec.aliases))

    @property
    def ready(self) -> bool:
        return bool(self._ready())

    def set_spec(self, spec: ModelSpec) -> None:
        """Become what discovery says; `refresh` follows. Another split begins its samples anew."""
        self.spec = spec
        before = None if self.split is None else self.split.spec
        if spec.split != before:
            self.split = None if spec.split is None else CanarySplit(spec.split)

    def decide(self, query: Query) -> None:
        """Decide which revision a new request goes to, if there are two."""
        if self.split is not None:
            query.to_canary = self.split.sends_to_canary(query)

    def replica_failed(self, replica: Replica) -> None:
        """An attempt failed by the replica's fault."""
        if self.split is not None:
            self.split.failed(replica)

    def waited_in_vain(self, replica_id: str) -> None:
        """A request ended before the replica that had it answered: the client left, or its time
        was over."""
        if self.split is not None:
            for replica in self.replicas.values():
                if replica.id == replica_id:
                    self.split.failed(replica)

    def choose(self, query: Query, tried: Sequence[Replica] = ()) -> Choice | None:
        """A replica not in `tried`, or None when no other one may take the request. Raises
        PolicyError."""
        candidates: Sequence[Replica] = self.usable
        if query.lora:  # those that stay may not hold it
            holding = _holding(query.lora, self._serviceable)
            candidates = self._preferred([each for each in holding if not each.full])
        if tried:
            candidates = [replica for replica in candidates if replica not in tried]
        if not candidates:
            return None
        if self.split is not None:
            candidates = self.split.among(query, candidates, bool(tried))
        if query.kept is not None and not tried:
            kept = self._kept(query.kept, time.monotonic())
            if kept is not None and kept.replica in candidates:
                return kept
        return self._choice(query, candidates)

    def holds(self, adapter: str) -> bool:
        """Return whether a replica that stays holds the LoRA adapter, whether it is ready or
        not."""
        return any(each.holds(adapter) for each in self.replicas.values() if not each.draining)

    def serves_beside(self, tried: Sequence[Replica], adapter: str = "") -> bool:
        """Return whether a replica not in `tried` serves the adapter, though it may be full now."""
        return any(it not in tried for it in _holding(adapter, self._serviceable))

    def has_room_for(self, adapter: str) -> bool:
        """Return whether a replica that holds the LoRA adapter, and is not down, may take a request
        now; "" is the model itself."""
        if not adapter:
            return self.has_room
        holding = _holding(adapter, self._serviceable)
        return any(not it.full and it.health is not Health.DOWN for it in holding)

    def prefers_room(self, query: Query) -> bool:
        """Return True if the replica that would be chosen of all that serve has room. Such a choice
        is kept, also for `choose`, while the same replicas serve under the same policy, but for
        RESERVED_SECONDS at most. Raises PolicyError."""
        now = time.monotonic()
        choice = self._kept(query.kept, now)
        if choice is None:
            serviceable = _holding(query.lora, self._serviceable)
            if not serviceable:
                return True  # its turn: it will see that none holds its adapter
            among: Sequence[Replica] = self._preferred(serviceable)
            if all(replica.full for replica in among):
                among = serviceable
            if self.split is not None:
                among = self.split.among(query, among, False)
            choice = self._choice(query, among)
            query.kept = Kept(choice, self.policy, self._serviceable, now + RESERVED_SECONDS)
        return not choice.replica.full

    def _kept(self, kept: Kept | None, now: float) -> Choice | None:
        """The choice, if it would probably be made again."""
        if kept is None or now >= kept.until or kept.policy is not self.policy:
            return None
        return kept.choice if kept.among is self._serviceable else None

    def _choice(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        try:
            return self.policy.choose(query, candidates)
        except Exception as error:
            self._policy_failed("choose")
            raise PolicyError from error

    # What the policy takes note of. A defect in it is logged, and costs its index an entry.

    def sent(self, query: Query, choice: Choice) -> None:
        """The request goes to the chosen replica."""
        try:
            self.policy.sent(query, choice)
        except Exception:
            self._policy_failed("sent")

    def ended(self, query: Query, choice: Choice, usage: Usage | None) -> None:
        """The request has ended."""
        try:
            self.policy.ended(query, choice, usage)
        except Exception:
            self._policy_failed("ended")

    def forget_replica(self, replica: Replica) -> None:
        """Nothing is in the replica's cache any more."""
        try:
            self.policy.forget_replica(replica)
        except Exception:
            self._policy_failed("forget")

    def _policy_failed(self, method: str) -> None:
        name = type(self.policy).__name__
        _log.exception("the policy raised", model=self.name, policy=name, method=method)
        self.policy_raised()

    def can_serve(self, adapter: str) -> bool:
        """Return whether a replica serves the LoRA adapter, "" for the model itself, though it may
        be full now. Suspects do not count: who asks has somewhere else to go."""
        return any(map(_is_ready, _holding(adapter, self._serviceable)))

    @property
    def capacity(self) -> int:
        """Requests that the ready replicas run at once, as far as known."""
        return sum(replica.capacity for replica in self._ready())

    def has_only(self, part: float) -> bool:
        """Return whether the free slots are at or below this share of the capacity, or
        MIN_RESERVED_SLOTS."""
        free = capacity = 0
        for replica in self._ready():
            free += replica.free
            capacity += replica.capacity
        return free <= reserved_slots(part, capacity)

    def refresh(self) -> None:
        """Make the list of usable replicas anew.

        Those that are ready. When more than half are suspect, it is the observation that is
        doubted: suspects are used like the others, or the few left would be overrun. Replicas that
        refuse connections only when there is nothing else: trying one costs little, and it may
        have come back just now.
        """
        known = [replica for replica in self._serving() if replica.health not in _UNAVAILABLE]
        ready = [replica for replica in known if _is_ready(replica)]
        suspects = [replica for replica in known if _is_suspect(replica)]
        usable = ready
        if len(suspects) * 2 > len(known):
            usable = ready + suspects
        if not usable and not self.ready:
            usable = [replica for replica in known if replica.health is Health.DOWN]
        self._some_leave = any(each.departure is not Departure.NONE for each in usable)
        if usable != self._serviceable:  # else choices among them are still good
            self._serviceable = usable
        self.refill()
        self._identify()
        # Also a canary's that get none yet: readiness gates wait for this list
        self.serving = [
            replica.id
            for replica in self.replicas.values()
            if replica.health is Health.READY and not replica.draining
        ]

    def refill(self) -> None:
        """Leave out those that are full now. Under overload each request that ends makes room at a
        replica and fills it again, while nothing else changes."""
        self.usable = self._preferred([each for each in self._serviceable if not each.full])
        had_room = self.has_room
        self.has_room = any(replica.health is not Health.DOWN for replica in self.usable)
        if self.has_room and not had_room:
            self.room()

    def _preferred(self, replicas: list[Replica]) -> list[Replica]:
        """Return those that stay, and of a revision without any those that leave: a model's last
        replica serves until its end, and others take what the rest has no room for."""
        if not self._some_leave:
            return replicas
        staying = {each.spec.canary for each in replicas if each.departure is Departure.NONE}
        return [
            each
            for each in replicas
            if each.departure is Departure.NONE or each.spec.canary not in staying
        ]

    def _identify(self) -> None:
        # A canary may serve something else
        stable = [each for each in self.replicas.values() if not each.spec.canary]
        said = [
            replica.serves
            for replica in stable or self.replicas.values()
            if replica.serves is not None and replica.spec.engine is EngineKind.KVASIR
        ]
        identity = min(said, key=repr, default=None)
        if identity != self.identity:
            self.identity = identity
            self.identity_changed()

    def _ready(self) -> list[Replica]:
        return [replica for replica in self._serving() if replica.health is Health.READY]

    def _serving(self) -> list[Replica]:
        return [
            replica
            for replica in self.replicas.values()
            if not replica.draining and self._admits(replica)
        ]

    def _admits(self, replica: Replica) -> bool:
        """Return whether the replica gets requests at all: one of a canary only by a split."""
        if not replica.spec.canary:
            return True
        return self.split is not None and self.split.is_canary(replica)


def reserved_slots(part: float, capacity: int) -> int:
    """Places that this part of `capacity` requests means."""
    return max(ceil(part * capacity), min(MIN_RESERVED_SLOTS, capacity // 4))


def _holding(adapter: str, replicas: list[Replica]) -> list[Replica]:
    """Return those that hold the LoRA adapter: the same list for the model itself."""
    return [it for it in replicas if it.holds(adapter)] if adapter else replicas


def _is_ready(replica: Replica) -> bool:
    return replica.health is Health.READY and replica.breaker.allows and not replica.rests


def _is_suspect(replica: Replica) -> bool:
    return replica.health is Health.SUSPECT or (
        replica.health is Health.READY and replica.breaker.state is BreakerState.OPEN
    )
