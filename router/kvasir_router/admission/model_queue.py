"""The requests of one model that wait for a replica: who is next, and who goes when it is full."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Protocol

from kvasir_router.admission.fairness import ServiceCounters
from kvasir_router.admission.tenant_shares import TenantShares
from kvasir_router.admission.ticket import Priority, Ticket
from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.responses import Answer

_RATE_SAMPLES = 64
_RATE_WINDOW = 30.0
_RETRY_UNKNOWN = 5
_RETRY_MAX = 60

_MAX_MISSED = 1024

_LOOKED_AT = 32
"""Maximum requests of a tenant looked at, for one that prefers a replica with room."""
_MAX_OVERTAKEN = 64
"""Times that the first is passed over before it is its turn whatever has room."""


class Served(Protocol):
    """Interface of a model as the queue needs it: `kvasir_router.fleet.model.Model` is one."""

    name: str
    spec: ModelSpec

    @property
    def ready(self) -> bool:
        """True if a replica serves."""

    @property
    def has_room(self) -> bool:
        """True if a replica may take a request now."""

    @property
    def capacity(self) -> int:
        """Requests that the ready replicas run at once, as far as known."""

    def has_only(self, part: float) -> bool:
        """Return True if no more than this part of the capacity is free."""


class Waiter(Protocol):
    """A queued request, as the queue sees it; Relay implements it."""

    @property
    def model(self) -> Served:
        """Model that the request is for."""

    ticket: Ticket
    request: Request

    @property
    def streams(self) -> bool:
        """True if the request wants events, so that comments can keep its connection alive."""

    @property
    def moving(self) -> bool:
        """True if the request has begun elsewhere: it goes before others, and not every replica
        will do."""

    @property
    def preferred_has_room(self) -> bool:
        """Return whether the preferred replica has a free slot."""

    @property
    def patience(self) -> float:
        """Seconds that it waits at most, however long others do."""

    def fall_back(self, reason: str) -> bool:
        """Go to another model instead of being refused; return whether it does."""

    def start(self) -> None:
        """Look at all replicas anew, as there may be room; `join` the queue again if there is
        none."""

    def refuse(self, answer: Answer) -> None:
        """Refuse the request: its queue timeout has passed."""

    def heartbeat(self) -> None:
        """Tell the client that its request waits on."""

    def defect(self, error: Exception) -> None:
        """End the request, for which one of these has raised."""


@dataclass(slots=True, eq=False)
class QueueEntry:
    """Waiting request."""

    waiter: Waiter
    deadline: float
    beat_at: float
    size: int
    """Bytes of its body."""
    overtaken: int = 0
    """Number of later requests of its tenant that overtook it, preferring the replica that had
    room."""


_Tenants = dict[str, OrderedDict[QueueEntry, None]]


class ModelQueue:
    """Classes strictly in order; within one, the tenant with the least service; within a tenant,
    in order of arrival, but that one whose own replica has room goes before others, up to a bound:
    places become free one at a time, and whoever takes any of them without finding its prefix there
    makes the next place come later."""

    def __init__(self, model: Served) -> None:
        self.model = model
        self.counters = ServiceCounters()
        self.shares = TenantShares()
        self.count = 0
        self.size = 0
        """Bytes of all bodies in it."""
        self.missed: deque[float] = deque(maxlen=_MAX_MISSED)
        """Times at which requests went to another model, as this one has no replica."""
        self._classes: tuple[_Tenants, ...] = tuple({} for _ in Priority)
        self._served_at: deque[float] = deque(maxlen=_RATE_SAMPLES)

    def __iter__(self) -> Iterator[QueueEntry]:
        for tenants in self._classes:
            for places in tenants.values():
                yield from places

    def add(self, place: QueueEntry, *, first: bool = False) -> None:
        """Add `place` at the end of its tenant's requests, or before them."""
        ticket = place.waiter.ticket
        tenants = self._classes[ticket.priority]
        places = tenants.get(ticket.tenant)
        if places is None:
            self.counters.came(ticket.tenant, tenants)
            places = tenants[ticket.tenant] = OrderedDict()
        places[place] = None
        if first:
            places.move_to_end(place, last=False)
        self.count += 1
        self.size += place.size

    def remove(self, place: QueueEntry) -> None:
        """Remove `place`, which waits no more, for whatever reason."""
        ticket = place.waiter.ticket
        tenants = self._classes[ticket.priority]
        places = tenants[ticket.tenant]
        del places[place]
        if not places:
            del tenants[ticket.tenant]
            self.counters.left(ticket.tenant)
        self.count -= 1
        self.size -= place.size

    def next(self, headroom: float) -> QueueEntry | None:
        """Return whose turn it is, if it is anybody's; it stays. The last `headroom` of a model's
        room is for tenants that are under their share."""
        if not self.count:
            return None
        is_short = self.shares.contended and self.model.has_only(headroom)
        for tenants in self._classes:
            turn = [each for each in tenants if not (is_short and self._is_over(tenants[each]))]
            if turn:
                return _first_with_preferred_room(tenants[self.counters.least(turn)])
        return None

    def dispensable(self, ticket: Ticket) -> QueueEntry | None:
        """Return the queued request to evict for one with `ticket`, or None.

        None when that would be the request itself."""
        for priority in reversed(Priority):
            tenants = self._classes[priority]
            if ticket.priority > priority:
                return None
            if tenants:
                return self._newest_of_longest(tenants, ticket, ticket.priority < priority)
        return None

    def served(self, now: float) -> None:
        """A request has left it for a replica."""
        self._served_at.append(now)

    def retry_after(self, now: float) -> int:
        """Seconds that a request would wait at the rate at which requests are served now."""
        while self._served_at and now - self._served_at[0] > _RATE_WINDOW:
            self._served_at.popleft()
        if not self._served_at:
            return _RETRY_UNKNOWN
        span = max(now - self._served_at[0], 1.0)
        return min(max(ceil(self.count * span / len(self._served_at)), 1), _RETRY_MAX)

    def _is_over(self, places: "OrderedDict[QueueEntry, None]") -> bool:
        ticket = next(iter(places)).waiter.ticket
        return self.shares.over(ticket.tenant, ticket.weight, self.model.capacity)

    def _newest_of_longest(
        self, tenants: _Tenants, ticket: Ticket, anyone: bool
    ) -> QueueEntry | None:
        def length(tenant: str) -> float:
            places = tenants[tenant]
            return len(places) / next(iter(places)).waiter.ticket.weight

        longest = max(tenants, key=length)
        own = (len(tenants.get(ticket.tenant, ())) + 1) / ticket.weight
        if not anyone and (longest == ticket.tenant or length(longest) <= own):
            return None
        return next(reversed(tenants[longest]))


def _first_with_preferred_room(places: "OrderedDict[QueueEntry, None]") -> QueueEntry:
    """The first whose own replica has room, or else the first of all; one that has begun elsewhere
    goes before others."""
    first = next(iter(places))
    if first.overtaken < _MAX_OVERTAKEN and not first.waiter.moving:
        for place in islice(places, _LOOKED_AT):
            if place.waiter.preferred_has_room:
                first.overtaken += place is not first
                return place
    return first
