"""The queue: requests that no replica may take now, held for a while, in fair order.

A model's replicas may all be at their bounds (saturation), or there may be none (scaled to zero,
or all of them down). Requests then wait here, bounded in number, bytes and time, instead of in an
engine's queue, where who came first goes first. Whenever a replica has room, the next is started.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from time import monotonic

from kvasir_router.admission.fairness import OUTPUT_WEIGHT
from kvasir_router.admission.model_queue import ModelQueue, QueueEntry, Served, Waiter
from kvasir_router.admission.ticket import Ticket
from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.wire import responses
from kvasir_router.wire.responses import Answer

_BUSY_LOOK_SECONDS = 0.05
_PASSED_OVER = 32
"""Requests that may find no replica in a turn, though there is room, before it ends."""
MISSED_SECONDS = 10.0
"""For so long a request that went to another model counts as one that wants this one."""
LOOK_SECONDS = 0.25
"""Between two looks at those that wait, at most."""


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class RequestQueue:
    """All models' queues. A request is in here between `join` and one of `start`, `refuse` (called
    on it) and `leave` (called by it)."""

    def __init__(
        self,
        settings: QueueLimits,
        clock: Callable[[], float] = monotonic,
        soon: Callable[[Callable[[], None]], object] = _call_soon,
    ) -> None:
        """`soon` runs what it is given when what is being done now is done."""
        self._settings = settings
        self._clock = clock
        self._soon = soon
        self._queues: dict[Served, ModelQueue] = {}
        self._entries: dict[Waiter, QueueEntry] = {}
        self._size = 0
        self._serving: QueueEntry | None = None
        self._rejoined = False
        self.refused: Callable[[Served, str], None] = lambda model, reason: None
        """Called with `full` or `timeout`."""
        self.defect: Callable[[str, BaseException], None] = lambda name, error: None
        """Called with what raised, where only one request or one look suffers from it."""

    # For requests

    def enter(self, waiter: Waiter) -> bool:
        """Return True if a new request may look for a replica at once. Otherwise, because others
        wait, it has joined them or was refused."""
        queue, ticket = self._queue(waiter.model), waiter.ticket
        if ticket.tenant:
            queue.shares.came(ticket.tenant, ticket.weight, self._clock())
        if queue.count or (queue.shares.contended and self._has_to_leave_room(queue, ticket)):
            self.join(waiter)
            self.room(waiter.model)
            return False
        if ticket.tenant:
            self._charge(queue, ticket)
        return True

    def join(self, waiter: Waiter) -> None:
        """No replica may take it now: it waits, or is refused at once."""
        queue = self._queue(waiter.model)
        ticket = waiter.ticket
        if ticket.charged:
            queue.shares.take_back(ticket.tenant, ticket.charged, self._clock())
            queue.counters.charge(ticket.tenant, -ticket.charged, ticket.weight)
            ticket.charged = 0.0
        serving = self._serving
        if serving is not None and serving.waiter is waiter:
            self._rejoined = True
            return
        now = self._clock()
        settings = self._settings
        patience = min(self._patience(waiter.model), waiter.patience)
        size = len(waiter.request.body)
        ticket.waits_since = ticket.waits_since or now
        deadline = ticket.waits_since + patience
        if patience <= 0 or not settings.requests:
            self._refuse(waiter, "full")
        elif now >= deadline:
            self._refuse(waiter, "timeout")
        elif self._make_place(queue, ticket, size):
            place = QueueEntry(waiter, deadline, now + self._heartbeat(waiter.model), size)
            self._add(queue, place, first=waiter.moving)
        else:
            self._refuse(waiter, "full")

    def leave(self, waiter: Waiter) -> None:
        """Remove a request whose client has gone; do nothing if it does not wait."""
        place = self._entries.get(waiter)
        if place is not None:
            self._remove(place)

    def settle(self, model: Served, ticket: Ticket, prompt_tokens: int, output_tokens: int) -> None:
        """Correct what a tenant was charged for a request that ended and used so much."""
        queue = self._queue(model)
        if ticket.charged:
            queue.shares.ended(ticket.tenant)
            used = prompt_tokens + OUTPUT_WEIGHT * output_tokens
            queue.counters.charge(ticket.tenant, used - ticket.charged, ticket.weight)
            ticket.charged = 0.0
            if output_tokens:
                queue.counters.learn(ticket.tenant, output_tokens)
        if queue.count:
            self.room(model)

    # For the fleet

    def waiting(self, model: Served) -> int:
        """Requests that wait for the model."""
        queue = self._queues.get(model)
        return queue.count if queue is not None else 0

    def missed(self, model: Served) -> None:
        """Take note of a request that has gone to another model, as this one has no replica."""
        self._queue(model).missed.append(self._clock())

    def wanting(self, model: Served) -> int:
        """Requests that wait for the model, and those of the last seconds that have gone to
        another one instead: what a model that sleeps is woken for."""
        queue = self._queues.get(model)
        if queue is None:
            return 0
        since = self._clock() - MISSED_SECONDS
        while queue.missed and queue.missed[0] < since:
            queue.missed.popleft()
        return queue.count + len(queue.missed)

    def waiting_tokens(self, model: Served) -> int:
        """Estimated prompt tokens of the requests that wait for the model."""
        queue = self._queues.get(model)
        return sum(place.waiter.ticket.prompt_tokens for place in queue or ())

    def room(self, model: Served) -> None:
        """A replica has room again: serve, after what is being done now."""
        if model.has_room and self.waiting(model):
            self._soon(partial(self.serve, model))

    def serve(self, model: Served) -> None:
        """Start waiting requests while a replica has room."""
        queue = self._queues.get(model)
        if self._serving is not None or queue is None:
            return
        aside: list[QueueEntry] = []
        passed_over = 0
        full: set[str] = set()
        while model.has_room:
            place = queue.next(self._settings.headroom, full)
            if place is None:
                break
            self._remove(place)
            if place.waiter.ticket.tenant:
                self._charge(queue, place.waiter.ticket)
            self._serving, self._rejoined = place, False
            try:
                place.waiter.start()
            except Exception as error:
                self._rejoined = False
                place.waiter.defect(error)
            finally:
                self._serving = None
            if not self._rejoined:
                queue.served(self._clock())
                continue
            aside.append(place)
            # There is room, but not for it: others may have it, and each of them costs a choice
            passed_over += not place.waiter.moving
            if passed_over >= _PASSED_OVER:
                break
        for place in reversed(aside):
            self._add(queue, place, first=True)

    def keep_models(self, models: Collection[Served]) -> None:
        """All others are gone."""
        for model in self._queues.keys() - set(models):
            for place in list(self._queues[model]):
                try:
                    self._end(place, "timeout")
                except Exception as error:
                    place.waiter.defect(error)
            del self._queues[model]

    async def watch(self) -> None:
        """Look after those that wait, forever."""
        while True:
            await asyncio.sleep(_BUSY_LOOK_SECONDS if self._entries else LOOK_SECONDS)
            self.serve_and_expire()

    def serve_and_expire(self) -> None:
        """Start who can be, end who has waited too long, tell the others' clients."""
        for model in list(self._queues):
            try:
                self.serve(model)
            except Exception as error:  # the other models' requests have their turn
                self.defect("queue", error)
        now = self._clock()
        for model, queue in list(self._queues.items()):
            beat = now + self._heartbeat(model)
            patience = 0.0 if model.ready else self._patience(model)
            for place in list(queue):
                # Its replicas may have gone since it came: then it is held as others are.
                own = min(patience, place.waiter.patience) if patience else 0.0
                place.deadline = max(place.deadline, place.waiter.ticket.waits_since + own)
                try:
                    self._look_at(place, now, beat)
                except Exception as error:
                    place.waiter.defect(error)

    # Places

    def _look_at(self, place: QueueEntry, now: float, next_beat: float) -> None:
        if now >= place.deadline:
            self._end(place, "timeout")
        elif now >= place.beat_at:
            place.beat_at = next_beat
            if place.waiter.streams:
                place.waiter.heartbeat()
        else:
            place.beat_at = min(place.beat_at, next_beat)

    def _patience(self, model: Served) -> float:
        """Seconds that requests for it wait."""
        if model.ready:
            return self._settings.timeout
        return self._settings.hold if model.spec.hold is None else model.spec.hold

    def _heartbeat(self, model: Served) -> float:
        often = self._settings.heartbeat
        return often if model.ready else min(often, self._settings.hold_heartbeat)

    def _queue(self, model: Served) -> ModelQueue:
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = ModelQueue(model)
        return queue

    def _make_place(self, queue: ModelQueue, ticket: Ticket, size: int) -> bool:
        """Return whether another request may be queued, evicting one if necessary."""
        settings = self._settings
        if queue.count >= settings.requests:
            other = queue.dispensable(ticket)
            if other is None:
                return False
            self._end(other, "full")
        return self._size + size <= settings.body_bytes

    def _add(self, queue: ModelQueue, place: QueueEntry, *, first: bool = False) -> None:
        queue.add(place, first=first)
        self._entries[place.waiter] = place
        self._size += place.size

    def _remove(self, place: QueueEntry) -> None:
        del self._entries[place.waiter]
        self._size -= place.size
        queue = self._queues.get(place.waiter.model)
        if queue is not None:
            queue.remove(place)

    def _end(self, place: QueueEntry, reason: str) -> None:
        self._remove(place)
        self._refuse(place.waiter, reason)

    def _refuse(self, waiter: Waiter, reason: str) -> None:
        if waiter.fall_back(f"queue_{'time' if reason == 'timeout' else reason}"):
            return
        self.refused(waiter.model, reason)
        waiter.refuse(self._answer(waiter.model))

    def _answer(self, model: Served) -> Answer:
        queue = self._queue(model)
        seconds = queue.retry_after(self._clock())
        if model.ready:
            waiting = f"; {queue.count} requests wait" if queue.count else ""
            message = f"All replicas of model `{model.name}` have all the requests they may"
            return responses.error(429, f"{message}{waiting}.", "overloaded", retry_after=seconds)
        message = f"Model `{model.name}` has no ready replica; try again soon."
        return responses.error(503, message, "model_not_ready", retry_after=seconds)

    # Service

    def _has_to_leave_room(self, queue: ModelQueue, ticket: Ticket) -> bool:
        model = queue.model
        if not self._settings.requests or not model.has_room:
            return False
        capacity = model.capacity // self._settings.workers
        is_over = queue.shares.over(ticket.tenant, ticket.weight, capacity)
        return is_over and model.has_only(self._settings.headroom)

    def _charge(self, queue: ModelQueue, ticket: Ticket) -> None:
        """Charge the tenant, only where there are tenants: without keys all are one."""
        ticket.charged = queue.counters.predict(ticket.tenant, ticket.prompt_tokens)
        queue.shares.started(ticket.tenant, ticket.charged, self._clock())
        queue.counters.charge(ticket.tenant, ticket.charged, ticket.weight)
