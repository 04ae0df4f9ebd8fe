"""A replica's answer on its way to the client: its head and its framing."""

import asyncio
from abc import abstractmethod
from enum import Enum

from kvasir_router.proxy.failures.failure import Failure
from kvasir_router.wire import responses
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.upstream import ResponseHead
from kvasir_router.wire.usage import TAIL_BYTES, Usage, usage_in_body

LAST_CHUNK = b"0\r\n\r\n"


class Client(asyncio.Protocol):
    """Connection to which a relayed answer is written. Like the other interfaces of this folder a
    base class, not a Protocol: compiled, its methods are called without a look-up by name."""

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """True when the connection is to be closed after the answer."""

    def write(self, data: bytes) -> None:
        """Write a part of the answer."""

    def answer(self, request: Request, answer: responses.Answer) -> None:
        """Write a whole answer of the router's own, and finish."""

    def finished(self, keep_alive: bool) -> None:
        """Go on with the next request: the answer is complete."""

    def abort(self, *, reset: bool = False) -> None:
        """Cut the connection: the answer cannot be completed."""


class AnswerObserver:
    """Receiver of the end of a replica's answer."""

    def answer_ended(self, usage: Usage | None) -> None:
        """Take note that the client has all of it; `usage`: token counts, if the engine told."""

    def answer_broken(self, failure: Failure) -> None:
        """Take note that the replica ended it, but not as a whole one."""


class Framing(Enum):
    """Framing that tells the client of the answer's end."""

    LENGTH = 1
    CHUNKED = 2
    CLOSE = 3


def framing_of(head: ResponseHead, http10: bool) -> Framing:
    """Return the framing of an answer with this head."""
    if head.content_length is not None:
        return Framing.LENGTH
    return Framing.CLOSE if http10 else Framing.CHUNKED


def answer_head(client: Client, request: Request, head: ResponseHead, framing: Framing) -> bytes:
    """Return the status line and headers that the client gets for a replica's."""
    if framing is Framing.LENGTH:
        line = b"Content-Length: %d\r\n" % (head.content_length or 0) if head.has_body else b""
    else:
        line = b"Transfer-Encoding: chunked\r\n" if framing is Framing.CHUNKED else b""
    if client.stopping or framing is Framing.CLOSE:
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
    """Pass an answer on as it comes. The head goes with the first bytes of the body: a small
    answer is one write, and one that breaks before is as good as none."""

    __slots__ = ("_chunked", "_client", "_head", "_observer", "_status", "_tail", "sent_bytes")

    def __init__(
        self, observer: AnswerObserver, client: Client, request: Request, head: ResponseHead
    ) -> None:
        framing = framing_of(head, request.http10)
        self._observer = observer
        self._status = head.status
        self._tail = b""
        self._client = client
        self._chunked = framing is Framing.CHUNKED
        self._head = answer_head(client, request, head, framing)
        self.sent_bytes = 0
        """Bytes of the body that went to the client."""

    @property
    def begun(self) -> bool:
        """Return whether the client has anything of it."""
        return not self._head

    @property
    def blank(self) -> bool:
        """Return whether another replica's answer can still be the whole of it."""
        return not self.begun

    def take(self, data: bytes, last: bool) -> None:
        """Sink.take."""
        self._write(data, last)
        if not last:
            self._tail = (self._tail + data)[-TAIL_BYTES:]
            return
        tail = self._tail + data[-TAIL_BYTES:]
        self._observer.answer_ended(usage_in_body(tail) if self._status == 200 else None)

    def end(self, error: responses.Answer) -> bool:
        """End an answer that cannot be completed, by a last word with `error`; False if its kind
        has none, so that only the end of the connection can tell."""
        return False

    def close(self) -> None:
        """Free what was kept for another replica."""

    def _write(self, data: bytes, last: bool) -> None:
        self.sent_bytes += len(data)
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
