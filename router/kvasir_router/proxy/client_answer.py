"""A replica's answer on its way to the client: its head and its framing."""

from enum import Enum
from typing import TYPE_CHECKING

from kvasir_router.proxy import answers
from kvasir_router.proxy.upstream import ResponseHead
from kvasir_router.proxy.usage import TAIL_BYTES, usage_in_body

if TYPE_CHECKING:
    from kvasir_router.proxy.relay import Relay

LAST_CHUNK = b"0\r\n\r\n"


class Framing(Enum):
    """How the end of the answer is told to the client."""

    LENGTH = 1
    CHUNKED = 2
    CLOSE = 3


def frame(head: ResponseHead, http10: bool) -> tuple[Framing, bytes]:
    """The framing of an answer with this head, and its header line."""
    if head.content_length is not None:
        if head.status in (204, 304):
            return Framing.LENGTH, b""
        return Framing.LENGTH, b"Content-Length: %d\r\n" % head.content_length
    if http10:
        return Framing.CLOSE, b""
    return Framing.CHUNKED, b"Transfer-Encoding: chunked\r\n"


class ClientAnswer:
    """Passes an answer on as it comes. The head goes with the first bytes of the body, so that a
    small answer is one write."""

    __slots__ = ("_chunked", "_client", "_head", "_relay", "_tail")

    def __init__(self, relay: "Relay", head: ResponseHead) -> None:
        request = relay.request
        framing, line = frame(head, request.http10)
        if relay.gateway.stopping or framing is Framing.CLOSE:
            request.keep_alive = False
        self._relay = relay
        self._tail = b""
        self._client = relay.client
        self._chunked = framing is Framing.CHUNKED
        self._head = b"%b%b%bX-Request-Id: %b\r\n%b%b\r\n" % (
            answers.status_line(head.status),
            b"".join(head.lines),
            line,
            request.request_id,
            request.answer_lines,
            b"" if request.keep_alive else b"Connection: close\r\n",
        )

    @property
    def blank(self) -> bool:
        """Whether another replica's answer can still be the whole of it."""
        return False

    def take(self, data: bytes, last: bool) -> None:
        """Sink.take."""
        self._write(data, last)
        if not last:
            self._tail = (self._tail + data)[-TAIL_BYTES:]
            return
        relay = self._relay
        if relay.usage is None and relay.status == 200:
            relay.usage = usage_in_body(self._tail + data[-TAIL_BYTES:])
        relay.answer_ended()

    def end(self, error: answers.Answer) -> None:
        """End an answer that cannot be completed: the connection ends before its length."""
        self._client.abort()

    def close(self) -> None:
        """The request is over."""

    def _write(self, data: bytes, last: bool) -> None:
        self._relay.sent_bytes += len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if last:
                data += LAST_CHUNK
        if self._head:
            data = self._head + data
            self._head = b""
        if data:
            self._client.write(data)
