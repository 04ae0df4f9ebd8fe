"""Arrival of a client's requests: parsed in turns, of which a bounded part may wait."""

import asyncio
import select
from collections import deque
from collections.abc import Callable

from kvasir_router.options.router_settings import Timeouts
from kvasir_router.proxy.client.deadlines import BodyDeadline
from kvasir_router.proxy.client.read_turn import ReadTurn
from kvasir_router.wire.http_request import BodyBudget, Limits, Request, RequestError
from kvasir_router.wire.request_parser import RequestParser

# Bytes of further requests taken while one is being answered, before the client is paused.
_MAX_PIPELINED = 256 * 1024


class Arrival:
    """Queue of the requests that have come and wait, and the reading of more. A queued RequestError
    is the last: nothing is parsed after it."""

    def __init__(
        self,
        limits: Limits,
        timeouts: Timeouts,
        bodies: BodyBudget,
        on_continue: Callable[[], None],
        check_head: Callable[[Request], None],
    ) -> None:
        self._timeouts = timeouts
        self.queue: deque[Request | RequestError] = deque()
        self.parser = RequestParser(limits, bodies, self.queue.append, on_continue, check_head)
        self.turn = ReadTurn(self.parser)
        self._body_deadline = BodyDeadline(timeouts, self.parser)
        self._pipelined_bytes = 0
        self._refused = False
        self.receiving = False
        """A part of a request has come, as of the last `watch`."""
        self.reading = True

    @property
    def waits(self) -> bool:
        """Return whether something has come that was not begun."""
        return bool(self.queue) or self.turn.waits

    def opened(self, transport: asyncio.Transport) -> None:
        """Read from this connection; called once, before all others."""
        self._transport = transport

    def take(self, data: bytes | memoryview) -> None:
        """Parse what was read."""
        try:
            if not self._refused:
                self.parser.feed(data)
        except RequestError as refusal:
            self._refused = True
            self.queue.append(refusal)
            self.turn.drop()

    def hold_back(self, size: int) -> None:
        """So many more bytes came while others wait."""
        self._pipelined_bytes += size
        if self._pipelined_bytes > _MAX_PIPELINED:
            self.pause()

    def none_waits(self) -> None:
        """All requests of the queue have been begun."""
        self._pipelined_bytes = 0
        if not self.reading:
            self.resume()

    def pause(self) -> None:
        """Read no more for now."""
        if self.reading:
            self.reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on, when all that was read is taken."""
        if not (self.reading or self.queue or self.turn.waits):
            self.read_on()

    def read_on(self) -> None:
        """Read on, whatever waits."""
        if not self.reading:
            self.reading = True
            self._transport.resume_reading()

    def watch(self) -> bool:
        """Look whether a request is being received; return whether it is a new one's header."""
        was, self.receiving = self.receiving, self.parser.receiving
        return self.receiving and not was and not self.parser.in_body

    def deadline(self, now: float, deadline: float, new: bool) -> float:
        """Return the loop time by which more of the request must have come: one for the header as a
        whole, for a body one for each pause in it and one for as much of it as has come."""
        if self.parser.in_body:
            return self._body_deadline.at(now)
        return now + self._timeouts.header if new else deadline

    def has_unread(self) -> bool:
        """Return whether bytes have come that the loop has not read yet."""
        poller = select.poll()
        poller.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return bool(poller.poll(0))

    def drop(self) -> None:
        """Forget all that has come."""
        self.queue.clear()
        self.turn.drop()
        self.parser.abandon()
