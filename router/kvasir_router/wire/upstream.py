"""One connection to a replica: requests out, its answers handed on as they come."""

import asyncio
import socket
from contextlib import suppress
from math import inf
from typing import Protocol, cast

import httptools

from kvasir_router.wire.header_names import FORWARD, LENGTH, answer_kind_of, answer_kinds

_MAX_HEADER_BYTES = 64 * 1024
_MAX_HEADERS = 200

# Up to here a copy costs less than a write of two parts.
_MAX_COPIED = 16 * 1024


class ResponseHead:
    """A response's status and headers: the lines to pass on, and how its body ends."""

    __slots__ = ("content_length", "content_type", "lines", "status", "usage")

    def __init__(self) -> None:
        self.status = 0
        self.lines: list[bytes] = []
        self.content_type = b""
        self.content_length: int | None = None
        """None: the body ends with its last chunk or with the connection."""
        self.usage = b""
        """Usage of a unary answer as a Kvasir engine tells it to routers."""

    @property
    def has_body(self) -> bool:
        """Return whether an answer of this status can have one (RFC 9110, 15.3.5 and 15.4.5)."""
        return self.status not in (204, 304)

    @property
    def has_events(self) -> bool:
        """Return whether the body is an event stream without a known end."""
        return self.content_length is None and self.content_type.startswith(b"text/event-stream")

    @property
    def is_json(self) -> bool:
        """Return whether the body is one value, of no use before its end."""
        return self.content_type.partition(b";")[0].rstrip() == b"application/json"


class Listener(Protocol):
    """Receiver of the answer on a connection."""

    def response_started(self, head: ResponseHead) -> None:
        """The header is complete."""

    def response_data(self, data: bytes, last: bool) -> None:
        """All body bytes of one read, possibly none; `last` with the end of the answer."""

    def response_broken(self, reason: str) -> None:
        """The connection ended first. `reason` is one of a few words, for metrics."""

    def response_failed(self, error: Exception) -> None:
        """One of these has raised; the connection is closed."""


class UpstreamConnection(asyncio.Protocol):
    """A keep-alive connection, with at most one request on it."""

    def __init__(self, pool: "ConnectionOwner") -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._listener: Listener | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._busy = False
        self._paused = False
        self._announced = False
        self.reusable = True
        """True if it goes back to its pool after an answer."""
        self.reused = False
        """True if an answer has come over it before."""
        self.idle_since = 0.0
        self.used_until = inf
        """Loop time from which on it takes no further request."""
        self.usable = False
        """True while it is open."""
        self._head_bytes = 0
        self._complete = False
        self._keep_alive = False
        self.on_message_begin()

    def send(self, listener: Listener, head: bytes, body: bytes) -> None:
        """Send one request; the connection must be idle and open."""
        transport = self._transport
        if transport is None:
            raise ConnectionResetError("the connection to the replica is closed")
        self._listener = listener
        self._busy = True
        self._head_done = self._announced = self._complete = False
        self._head_bytes = 0
        if len(body) > _MAX_COPIED:
            transport.writelines((head, body))
        else:
            transport.write(head + body)

    def abort(self) -> None:
        """Close at once, so that the replica stops working on the request."""
        self._listener = None
        self.usable = False
        if self._transport is not None:
            if self._busy:
                _cut(self._transport)
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading: the client is slower than the replica."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.abort()  # an answer to nothing
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._broken("invalid_response")
            return
        if not self._announced and self._is_head_too_large(len(data)):
            self._broken("invalid_response")
            return
        if not self._head_done:
            return
        listener = self._listener
        try:
            self._hand_on()
        except Exception as error:
            self._failed(listener, error)

    def eof_received(self) -> None:
        self.usable = False
        if self._busy and self._head_done and self._until_close:
            listener, self._listener = self._listener, None
            if listener is not None:
                try:
                    listener.response_data(b"", True)
                except Exception as error:
                    self._failed(listener, error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.usable = False
        self._pool.forget(self)
        self._broken("connection_lost" if self._announced else "reset")

    # Called by httptools, in this order.

    def on_message_begin(self) -> None:
        if self._complete:
            raise httptools.HttpParserError("more than one answer to a request")
        self._head = ResponseHead()
        self._head_done = False
        self._chunked = False
        self._until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done:
            return  # trailers are dropped
        head = self._head
        kind = answer_kinds.get(name) or answer_kind_of(name)
        if kind is FORWARD:
            head.lines.append(b"%b: %b\r\n" % (name, value))
        elif kind == LENGTH:
            head.content_length = int(value)
        elif kind == b"content-type":
            head.content_type = value.lower()
            head.lines.append(b"%b: %b\r\n" % (name, value))
        elif kind == b"transfer-encoding":
            self._chunked = True
        elif kind == b"x-kvasir-usage":
            head.usage = value

    def on_headers_complete(self) -> None:
        head = self._head
        if len(head.lines) > _MAX_HEADERS:
            raise httptools.HttpParserError("too many response headers")
        head.status = self._parser.get_status_code()
        if head.status < 200:
            return  # an interim answer; the real one follows
        if not head.has_body:
            head.content_length = 0
        self._until_close = head.content_length is None and not self._chunked
        self._head_done = True

    def on_body(self, data: bytes) -> None:
        if self._listener is not None:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self._complete = self._head_done
        self._keep_alive = self._parser.should_keep_alive()

    def _hand_on(self) -> None:
        """Hand what has come on to the listener."""
        if not self._announced:
            self._announced = True
            if self._listener is not None:
                self._listener.response_started(self._head)
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        listener = self._listener
        if self._complete:
            self._finish()
        if listener is not None:
            listener.response_data(body, self._complete)

    def _is_head_too_large(self, read: int) -> bool:
        """Counted by whole reads until it is complete, which costs nothing."""
        self._head_bytes += read
        if self._head_bytes <= _MAX_HEADER_BYTES:
            return False
        return not self._head_done or sum(map(len, self._head.lines)) > _MAX_HEADER_BYTES

    def _finish(self) -> None:
        """Release the connection before notifying the listener, which may reuse it at once."""
        self._listener = None
        self._busy = False
        if self._paused:
            self.resume()
        if self.reusable and self._keep_alive and self.usable:
            self.reused = True
            self._pool.release(self)
        else:
            self.abort()

    def _broken(self, reason: str) -> None:
        listener, self._listener = self._listener, None
        self.abort()
        if listener is not None:
            try:
                listener.response_broken(reason)
            except Exception as error:
                listener.response_failed(error)

    def _failed(self, listener: Listener | None, error: Exception) -> None:
        self.abort()
        if listener is not None:
            listener.response_failed(error)


def _cut(transport: asyncio.Transport) -> None:
    """Tell the peer of the end now: the transport does when all else is done that this turn of the
    loop has to do, which is milliseconds for a busy router."""
    fd = transport.get_extra_info("socket").fileno()
    if fd < 0:
        return
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)  # of whatever family it is
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.detach()


class ConnectionOwner(Protocol):
    """Owner that a connection goes back to when it is idle, and that drops it when it is lost."""

    def release(self, connection: UpstreamConnection) -> None:
        """It is idle and may be used again."""

    def forget(self, connection: UpstreamConnection) -> None:
        """It is closed."""
