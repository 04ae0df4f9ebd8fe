"""Requests that wait in a queue, a model with places, and a clock that a test sets."""

from math import ceil, inf
from typing import Any

from kvasir_router.admission.ticket import Ticket
from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.wire.http_request import Request


class Room:
    """A model with so many free places."""

    def __init__(self, free: int = 0, ready: bool = True, capacity: int = 0) -> None:
        self.name = "m"
        self.spec = ModelSpec("m")
        self.free = free
        self.capacity = capacity
        self.full: set[str] = set()
        """Adapters whose replicas are full."""
        self.looks = 0
        self.ready = ready

    @property
    def has_room(self) -> bool:
        return self.free > 0

    def has_room_for(self, adapter: str) -> bool:
        return self.has_room and adapter not in self.full

    def has_only(self, part: float) -> bool:
        self.looks += 1
        return self.free <= ceil(part * self.capacity)


class Asking:
    """A request as the queue sees it."""

    def __init__(
        self, queue, model, tenant="a", *, size=100, streams=False, adapter="", **ticket
    ) -> None:
        self.queue = queue
        self.model = model
        self.ticket = Ticket(size // 4, 100, tenant=tenant, **ticket)
        self.request = Request()
        self.request.body = b"x" * size
        self.adapter = adapter
        self.streams = streams
        self.moving = False
        self.preferred_has_room = True
        self.patience = inf
        self.fallback_reason = ""
        """Reason for which it went to another model."""
        self.has_fallback = False
        self.state = "new"
        self.answer: Any = None
        self.beats = 0

    def come(self) -> "Asking":
        if self.queue.enter(self):
            self.start()
        elif self.state == "new":
            self.state = "waits"
        return self

    def start(self) -> None:
        assert self.state in ("new", "waits")
        if self.model.has_room_for(self.adapter):
            self.model.free -= 1
            self.state = "runs"
        else:
            self.state = "waits"
            self.queue.join(self)

    def fall_back(self, reason: str) -> bool:
        if self.has_fallback:
            self.state, self.fallback_reason = "elsewhere", reason
        return self.has_fallback

    def refuse(self, answer) -> None:
        self.state = "refused"
        self.answer = answer

    def heartbeat(self) -> None:
        self.beats += 1

    def leave(self) -> None:
        self.state = "left"
        self.queue.leave(self)

    def end(self, prompt: int = 25, output: int = 100) -> None:
        self.state = "ended"
        self.model.free += 1
        self.queue.settle(self.model, self.ticket, prompt, output)
        self.queue.serve(self.model)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now
