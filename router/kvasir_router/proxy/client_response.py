"""A replica's answer on its way to the client: its head and its framing."""

from enum import Enum
from typing import TYPE_CHECKING

from kvasir_router.wire import responses
from kvasir_router.wire.upstream import ResponseHead
from kvasir_router.wire.usage import TAIL_BYTES, usage_in_body

if TYPE_CHECKING:
    from kvasir_router.proxy.relay import Relay

LAST_CHUNK = b"0\r\n\r\n"


class Framing(Enum):
    """How the end of the answer is told to the client."""

    LENGTH = 1
    CHUNKED = 2
    CLOSE = 3


def framing_of(head: ResponseHead, http10: bool) -> Framing:
    """For an answer with this head."""
    if head.content_length is not None:
        return Framing.LENGTH
    return Framing.CLOSE if http10 else Framing.CHUNKED


def answer_head(relay: "Relay", head: ResponseHead, framing: Framing) -> bytes:
    """The status line and headers that the client gets for a replica's."""
    request = relay.request
    if framing is Framing.LENGTH:
        line = b"Content-Length: %d\r\n" % (head.content_length or 0) if head.has_body else b""
    else:
        line = b"Transfer-Encoding: chunked\r\n" if framing is Framing.CHUNKED else b""
    if relay.gateway.stopping or framing is Framing.CLOSE:
        request.keep_alive = False
    return b"%b%b%bX-Request-Id: %b\r\n%b%b\r\n" % (
        responses.STATUS_LINES.get(head.status) or responses.status_line(head.status),
        b"".join(head.lines),
        line,
        request.request_id,
        request.answer_lines,
        b"" if request.keep_alive else b"Connection: close\r\n",
    )


class ClientAnswer:
    """Passes an answer on as it comes. The head goes with the first bytes of the body: a small
    answer is one write, and one that breaks before is as good as none."""

    __slots__ = ("_chunked", "_client", "_head", "_relay", "_tail")

    def __init__(self, relay: "Relay", head: ResponseHead) -> None:
        framing = framing_of(head, relay.request.http10)
        self._relay = relay
        self._tail = b""
        self._client = relay.client
        self._chunked = framing is Framing.CHUNKED
        self._head = answer_head(relay, head, framing)

    @property
    def begun(self) -> bool:
        """Whether the client has anything of it."""
        return not self._head

    @property
    def blank(self) -> bool:
        """Whether another replica's answer can still be the whole of it."""
        return not self.begun

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

    def end(self, error: responses.Answer) -> None:
        """End an answer that cannot be completed: the connection ends before its length or its last
        chunk. HTTP/1.0 may know of neither, and takes any end but a reset for the answer's."""
        self._client.abort(reset=self._relay.request.http10)

    def close(self) -> None:
        """The request is over."""

    def _write(self, data: bytes, last: bool) -> None:
        self._relay.sent_bytes += len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if last:
                data += LAST_CHUNK
        if self._head:
            if not data and not last:
                return
            data = self._head + data
            self._head = b""
        if data:
            self._client.write(data)
