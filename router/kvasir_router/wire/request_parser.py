"""The strict subset of HTTP/1.1 that clients may speak: its limits and its refusals, in one place.

A proxy and the server behind it must never disagree about where a request ends (request smuggling).
Therefore nothing ambiguous is repaired here: it is refused, and the connection is closed. llhttp
(in its strict mode, below httptools) refuses bare CR or LF, folded headers, space before a colon,
control characters, two Content-Length headers and Content-Length beside Transfer-Encoding; this
module adds what it lets through, and the limits. The request sent on to a replica is always
written anew, with one Content-Length and no header that is meant for this hop only.
"""

import re
from binascii import hexlify
from collections.abc import Callable
from random import getrandbits

import httptools

from kvasir_router.wire.endpoints import Endpoint, endpoint_of
from kvasir_router.wire.header_names import DROP, FORWARD, HOST, LENGTH, REFUSE, kind_of, kinds
from kvasir_router.wire.http_request import (
    BodyBudget,
    Limits,
    Request,
    RequestError,
    path_of,
    seconds_of,
)
from kvasir_router.wire.known_header import KnownHead
from kvasir_router.wire.long_bodies.received_body import ReceivedBody

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"DELETE", b"OPTIONS"})

# Chunk sizes and extensions may not outweigh the body they carry: bytes allowed beside it.
_CHUNK_SLACK = 64 * 1024
_CHUNK_OVERHEAD = 16

# A header is remembered for when it comes again; after so many in vain the client's all differ.
_MAX_REMEMBERED = 4

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")


class RequestParser:
    """Bytes of one client connection in, checked `Request`s out.

    `on_request` is called for each request that is complete; `on_continue` when the client waits
    for `100 Continue` before it sends a body that is acceptable; `on_head` when a header is
    complete and a body is to follow, which it refuses by raising RequestError.
    """

    def __init__(
        self,
        limits: Limits,
        budget: BodyBudget,
        on_request: Callable[[Request], None],
        on_continue: Callable[[], None],
        on_head: Callable[[Request], None] | None = None,
    ) -> None:
        """`budget` is that of all connections of the process."""
        self._limits = limits
        self._on_request = on_request
        self._on_continue = on_continue
        self._on_head = on_head
        self._body = ReceivedBody(budget)
        self._parser = httptools.HttpRequestParser(self)
        # A made request id is the connection's random bits and a number: cheaper than new bits.
        self._id = b"%024x" % getrandbits(96)
        self.serial = 0
        """Number of the request that is being received, or was last."""
        self._known: KnownHead | None = None
        self._known_request = Request()
        self._to_remember = _MAX_REMEMBERED
        self._by_known = False
        """True when what is being received began with the known header: llhttp does not see it."""
        self.on_message_begin()
        self.receiving = False
        """True when a request has begun and is not complete."""

    @property
    def in_body(self) -> bool:
        """Return whether the header of the request that is being received is complete."""
        return self.receiving and self._head_done

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint of the request that is being received, or was refused, as far as is known."""
        return endpoint_of(self._request.target.split(b"?", 1)[0].decode("latin-1"))

    @property
    def missing(self) -> int:
        """Bytes of a body still to come, when its length is known."""
        return self._length - self._body.size if self.in_body else 0

    @property
    def received(self) -> int:
        """Bytes of the body that have come."""
        return self._body.size

    def hold_more(self, size: int) -> None:
        """A body that was received has grown. Raises RequestError."""
        self._body.hold_more(size)

    def give_back(self, size: int) -> None:
        """A body that was received is held no longer."""
        self._body.give_back(size)

    def abandon(self) -> None:
        """Nothing that was received is of use."""
        self._body.abandon(self._request)

    def feed(self, data: bytes | memoryview) -> None:
        """Raises `RequestError`; nothing can be read from the connection after that."""
        while data:
            if self._by_known:
                data = self._take_body(data)
            elif self._known is not None and not self.receiving and self._begin_known(data):
                data = data[self._body_at :]
            else:
                self._parse(data)
                return

    def _parse(self, data: bytes | memoryview) -> None:
        """Let llhttp see it."""
        is_new, serial = not self.receiving, self.serial
        head_was_open = self.receiving and not self._head_done
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserInvalidMethodError:
            raise RequestError(400, "The request method is not known.") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise RequestError(400, f"Malformed HTTP request: {error}.") from None
        if head_was_open and not self._head_done:
            self._open_bytes += len(data)
            self._check_head_size(self._open_bytes)
        if self._chunked and self.receiving:
            self._check_chunk_overhead(len(data))
        if is_new and self._to_remember and self._head_done and self.serial == serial + 1:
            self._remember(bytes(data))

    # A header that has come before.

    def _remember(self, data: bytes) -> None:
        """Keep its header for when it comes again, if nothing in it is about this one request."""
        request = self._request
        is_plain = self._length and self._connection is None and not self._expect_continue
        if is_plain and request.request_id.startswith(self._id):
            self._to_remember -= 1
            self._known = KnownHead.of(data)
            if self._known is not None:
                self._known_request = request.like(b"")

    def _begin_known(self, data: bytes | memoryview) -> bool:
        """Return whether a request with the known header begins here."""
        known = self._known
        found = None if known is None else known.find(bytes(data))
        if found is None or not 0 < found[0] <= self._limits.body_bytes:
            return False
        self._to_remember = _MAX_REMEMBERED
        self.serial += 1
        self._request = self._known_request.like(self._made_id())
        self._head_done = self.receiving = self._by_known = True
        self._chunked = False
        self._length, self._body_at = found
        self._body.begin()
        if self._on_head is not None:
            self._on_head(self._request)
        self._body.budget.check(self._length)
        return True

    def _take_body(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return what follows the body."""
        missing = self._length - self._body.size
        self._body.add(data if len(data) <= missing else data[:missing], self._request)
        if self._body.size == self._length:
            self._by_known = False
            self.on_message_complete()
        return data[missing:]

    def _made_id(self) -> bytes:
        return self._id + hexlify((self.serial & 0xFFFFFFFF).to_bytes(4, "big"))

    # Called by httptools, in this order.

    def on_message_begin(self) -> None:
        self.receiving = True
        self.serial += 1
        self._request = request = Request()
        self._lines = request.lines
        self._head_done = self._chunked = self._expect_continue = False
        self._head_bytes = self._open_bytes = self._specials = self._hosts = 0
        self._length = self._raw_body_bytes = self._body_at = 0
        self._connection: set[bytes] | None = None
        self._body.begin()

    def on_url(self, url: bytes) -> None:
        request = self._request
        request.target = request.target + url if request.target else url
        self._head_bytes += len(url)
        if len(request.target) > self._limits.target_bytes:
            raise RequestError(
                414, f"The request target is longer than {self._limits.target_bytes} bytes."
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done:
            raise RequestError(400, "Trailers after a chunked body are not accepted.")
        kind = kinds.get(name) or kind_of(name)
        if kind is FORWARD:
            self._lines.append(b"%b: %b\r\n" % (name, value))
            return
        self._specials += 1
        self._head_bytes += len(name) + len(value) + 4
        if kind == HOST:
            self._hosts += 1
        elif kind == LENGTH:
            self._content_length(value.strip(b" \t"))
        elif kind is REFUSE:
            raise RequestError(400, f"The header {name.decode()} is not a name of HTTP's.")
        elif kind is not DROP:
            self._special_header(kind, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        request = self._request
        lines = self._lines
        self._check_head_size(self._head_bytes + sum(map(len, lines)))
        if len(lines) + self._specials > self._limits.headers:
            raise RequestError(431, f"The request has more than {self._limits.headers} headers.")
        self._check_start_line(request)
        if self._hosts != 1 and not (request.http10 and self._hosts == 0):
            raise RequestError(400, "The request must have one Host header.")
        if self._chunked and request.http10:
            raise RequestError(400, "HTTP/1.0 has no Transfer-Encoding.")
        if self._connection is not None:
            self._check_connection(request, self._connection)
        if not request.request_id:
            request.request_id = self._made_id()
        self._head_done = True
        if not (self._chunked or self._length):
            return
        if self._on_head is not None:
            self._on_head(request)
        self._body.budget.check(self._length)
        if self._expect_continue and not request.http10:
            self._on_continue()

    def on_body(self, data: bytes) -> None:
        if self._body.size + len(data) > self._limits.body_bytes:
            raise self._too_large()
        self._body.add(data, self._request)

    def on_message_complete(self) -> None:
        self._body.finish(self._request)
        self.receiving = False
        self._on_request(self._request)

    # The rules.

    def _special_header(self, key: bytes, value: bytes) -> None:
        if key == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                raise RequestError(400, "Transfer-Encoding must be `chunked`, once.")
            self._chunked = True
        elif key == b"connection":
            names = {token.strip().lower() for token in value.split(b",")}
            self._connection = (self._connection or set()) | names - {b"keep-alive", b"close"}
        elif key in (b"authorization", b"x-api-key"):
            self._take_credential(key, value)
        elif key == b"expect":
            if value.lower() != b"100-continue":
                raise RequestError(417, "Only `Expect: 100-continue` is understood.")
            self._expect_continue = True
        elif key == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                self._request.request_id = value
        elif key == b"x-request-timeout":
            self._request.timeout = seconds_of(value)
        elif key == b"content-encoding" and value.lower() != b"identity":
            raise RequestError(415, "Compressed request bodies are not accepted; send plain JSON.")

    def _take_credential(self, key: bytes, value: bytes) -> None:
        field = "api_key" if key == b"x-api-key" else "authorization"
        if getattr(self._request, field):
            name = key.title().decode()
            raise RequestError(400, f"The request must have at most one {name} header.")
        setattr(self._request, field, value)

    def _content_length(self, value: bytes) -> None:
        if not value.isdigit() or len(value) > 18:
            raise RequestError(400, "Content-Length must be a decimal number.")
        self._length = int(value)
        if self._length > self._limits.body_bytes:
            raise self._too_large()

    def _check_start_line(self, request: Request) -> None:
        # Without a Connection header it is HTTP/1.1 that keeps alive; asking that costs a tenth.
        if self._connection is not None or not self._parser.should_keep_alive():
            self._check_version(request, self._parser.get_http_version())
        request.method = method = self._parser.get_method()
        if method not in METHODS:
            raise RequestError(
                405,
                f"Method {method.decode()} is not allowed; use GET, HEAD, POST, DELETE or OPTIONS.",
                "method_not_allowed",
            )
        target = request.target
        if target == b"*" and method == b"OPTIONS":
            request.path = "*"
        else:
            request.path = path_of(target)

    @staticmethod
    def _check_version(request: Request, version: str) -> None:
        if version not in ("1.1", "1.0"):
            raise RequestError(505, f"HTTP/{version} is not spoken here; use HTTP/1.1.")
        if version == "1.0":
            request.http10 = True
            request.keep_alive = False

    def _check_connection(self, request: Request, names: set[bytes]) -> None:
        """Check what the Connection header says, without which nothing is special."""
        if self._parser.should_upgrade():
            raise RequestError(400, "Protocol upgrades are not supported; use plain HTTP/1.1.")
        request.keep_alive = not request.http10 and self._parser.should_keep_alive()
        if names:
            request.lines = [
                line for line in request.lines if line.split(b":", 1)[0].lower() not in names
            ]

    def _check_head_size(self, size: int) -> None:
        if size > self._limits.header_bytes:
            raise RequestError(
                431, f"The request header is larger than {self._limits.header_bytes} bytes."
            )

    def _check_chunk_overhead(self, size: int) -> None:
        self._raw_body_bytes += size
        if self._raw_body_bytes > _CHUNK_SLACK + _CHUNK_OVERHEAD * self._body.size:
            raise RequestError(400, "The chunked body holds far more framing than data.")

    def _too_large(self) -> RequestError:
        return RequestError(
            413,
            f"The request body is larger than {self._limits.body_bytes} bytes; send a shorter one.",
            "request_too_large",
        )
