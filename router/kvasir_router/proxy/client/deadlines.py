"""Deadlines of a client connection: for a body to come, for a refused client to read why."""

from kvasir_router.options.router_settings import Timeouts
from kvasir_router.wire.request_parser import RequestParser

# After a refusal the client may still be sending; closing under it would reset the connection
# before it has read why. Its bytes are thrown away until none came for so long, within limits.
LINGER_SECONDS = 2.0
_MAX_LINGER_SECONDS = 30.0
_MAX_LINGER_BYTES = 256 * 1024 * 1024


class BodyDeadline:
    """Deadline of the body that is being received: one for each pause in it, and one for as much
    of it as has come, which no byte puts off for longer than the slowest rate allows."""

    def __init__(self, timeouts: Timeouts, parser: RequestParser) -> None:
        self._timeouts = timeouts
        self._parser = parser
        self._serial = 0
        self._since = 0.0

    def at(self, now: float) -> float:
        """Return the loop time by which more has to come."""
        timeouts, parser = self._timeouts, self._parser
        if self._serial != parser.serial:
            self._serial, self._since = parser.serial, now
        whole = self._since + timeouts.body + parser.received / timeouts.body_rate
        return min(now + timeouts.body, whole)


class Linger:
    """Time and bytes that a client gets to end what it sends when it is answered for the last
    time."""

    def __init__(self) -> None:
        self._bytes = 0
        self._until = 0.0
        self._end = 0.0

    def begin(self, now: float, send_timeout: float) -> float:
        """Return the first deadline."""
        self._until = now + send_timeout
        self._end = now + _MAX_LINGER_SECONDS
        return now + LINGER_SECONDS

    def unread(self, now: float) -> bool:
        """Return whether a client that has not read its answer yet may still do so."""
        return now < self._until

    def received(self, size: int, now: float) -> float:
        """Return the next deadline, as more bytes came that nobody wants; 0 = it is over."""
        self._bytes += size
        return 0.0 if self._bytes > _MAX_LINGER_BYTES else min(now + LINGER_SECONDS, self._end)
