"""The requests of one model that wait for a replica: who is next, and who goes when it is full."""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from math import ceil
from operator import attrgetter
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

    def has_room_for(self, adapter: str) -> bool:
        """Return whether a replica that holds this LoRA adapter may take a request now; "" is the
        model itself."""

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
    def adapter(self) -> str:
        """LoRA adapter that the request is for; "" = the model itself."""

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
    order: int = 0
    """Place in the order of arrival."""


_order = attrgetter("order")


class _TenantQueue:
    """One tenant's requests of one class, in order of arrival, apart by the adapters that they are
    for: while those of one wait for its replicas, nobody has to look at each of them."""

    def __init__(self) -> None:
        self.by_adapter: dict[str, OrderedDict[QueueEntry, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueueEntry]:
        return self.of(self.by_adapter)

    def of(self, adapters: Collection[str]) -> Iterator[QueueEntry]:
        """Return those that wait for one of the adapters, in order of arrival."""
        found = [iter(each) for name, each in self.by_adapter.items() if name in adapters]
        return found[0] if len(found) == 1 else merge(*found, key=_order)

    @property
    def newest(self) -> QueueEntry:
        return max((next(reversed(each)) for each in self.by_adapter.values()), key=_order)

    def add(self, place: QueueEntry, *, first: bool) -> None:
        places = self.by_adapter.setdefault(place.waiter.adapter, OrderedDict())
        places[place] = None
        if first:
            places.move_to_end(place, last=False)
        self._count += 1

    def remove(self, place: QueueEntry) -> None:
        adapter = place.waiter.adapter
        places = self.by_adapter[adapter]
        del places[place]
        if not places:
            del self.by_adapter[adapter]
        self._count -= 1


_Tenants = dict[str, _TenantQueue]


class ModelQueue:
    """Classes strictly in order; within one, the tenant with the least service; within a tenant,
    in order of arrival, but that one whose own replica has room goes before others, up to a bound:
    places become free one at a time, and whoever takes any of them without finding its prefix there
    makes the next place come later. Requests for an adapter whose replicas are full hold up nobody:
    it is as if they had not come, until one has room."""

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
        self._adapters: Counter[str] = Counter()
        """Requests that wait for each adapter."""
        self._first = self._last = 0
        """Places in the order of arrival that were given last, at both ends."""
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
            places = tenants[ticket.tenant] = _TenantQueue()
        if first:
            self._first -= 1
            place.order = self._first
        else:
            self._last += 1
            place.order = self._last
        places.add(place, first=first)
        self._adapters[place.waiter.adapter] += 1
        self.count += 1
        self.size += place.size

    def remove(self, place: QueueEntry) -> None:
        """Remove `place`, which waits no more, for whatever reason."""
        ticket = place.waiter.ticket
        tenants = self._classes[ticket.priority]
        places = tenants[ticket.tenant]
        places.remove(place)
        if not places:
            del tenants[ticket.tenant]
            self.counters.left(ticket.tenant)
        adapter = place.waiter.adapter
        self._adapters[adapter] -= 1
        if not self._adapters[adapter]:
            del self._adapters[adapter]
        self.count -= 1
        self.size -= place.size

    def next(self, headroom: float, full: set[str]) -> QueueEntry | None:
        """Return whose turn it is, if it is anybody's; it stays. The last `headroom` of a model's
        room is for tenants that are under their share. `full`: adapters that were found to have no
        room; more are added to them."""
        model = self.model
        full.update(each for each in self._adapters.keys() - full if not model.has_room_for(each))
        adapters = self._adapters.keys() - full
        if not adapters:
            return None
        is_short = self.shares.contended and self.model.has_only(headroom)
        for tenants in self._classes:
            turn = [
                name
                for name, places in tenants.items()
                if not (full and places.by_adapter.keys().isdisjoint(adapters))
                and not (is_short and self._is_over(places))
            ]
            if turn:
                return _first_with_preferred_room(tenants[self.counters.least(turn)].of(adapters))
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

    def _is_over(self, places: _TenantQueue) -> bool:
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
        return tenants[longest].newest


def _first_with_preferred_room(places: Iterator[QueueEntry]) -> QueueEntry:
    """The first whose own replica has room, or else the first of all; one that has begun elsewhere
    goes before others."""
    first = next(places)
    if first.overtaken < _MAX_OVERTAKEN and not first.waiter.moving:
        for place in chain((first,), islice(places, _LOOKED_AT - 1)):
            if place.waiter.preferred_has_room:
                first.overtaken += place is not first
                return place
    return first
