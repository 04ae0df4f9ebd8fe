"""The strict subset of HTTP/1.1 that clients may speak: its limits and its refusals, in one place.

A proxy and the server behind it must never disagree about where a request ends (request smuggling).
Therefore nothing ambiguous is repaired here: it is refused, and the connection is closed. llhttp
(in its strict mode, below httptools) refuses bare CR or LF, folded headers, space before a colon,
control characters, two Content-Length headers and Content-Length beside Transfer-Encoding; this
module adds what it lets through, and the limits. The request sent on to a replica is always
written anew, with one Content-Length and no header that is meant for this hop only.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import getrandbits

import httptools

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"OPTIONS"})

# Meant for one hop (RFC 9110, 7.6.1), or written anew by the router.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"x-request-id",
    }
)
# Answers are relayed uncompressed: events are cut, and an error event may have to follow.
_SPECIAL = HOP_BY_HOP | {b"host", b"expect", b"content-encoding", b"accept-encoding"}

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})

# Chunk sizes and extensions may not outweigh the body they carry: bytes allowed beside it.
_CHUNK_SLACK = 64 * 1024
_CHUNK_OVERHEAD = 16

# What becomes of a header, by its name as clients spell it; see `_kind`.
_FORWARD, _DROP = b"forward", b"drop"

# Longer names and targets are looked at anew each time, so that the caches stay small.
_MAX_CACHED = 256

_TARGET = re.compile(rb"/[!\"$-~]*")
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_DOT_SEGMENT = re.compile(r"(^|/)(\.|%2e){1,2}(/|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one request."""

    header_bytes: int = 32 * 1024
    """Request line and headers together."""

    headers: int = 100
    target_bytes: int = 8 * 1024
    body_bytes: int = 64 * 1024 * 1024


class RequestError(Exception):
    """A request that is refused: `status`, an OpenAI error `code`, and one sentence on why."""

    def __init__(self, status: int, message: str, code: str = "bad_request") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


@lru_cache(maxsize=1024)
def _kind(name: bytes) -> bytes:
    """`_FORWARD`, `_DROP`, or the lower-case name of a header that is looked at here.

    Raises RequestError for names that some servers take for those that frame a body.
    """
    key = name.lower()
    if key in _SPECIAL:
        return key
    if key.replace(b"_", b"-") in _FRAMING:
        raise RequestError(400, f"The header {name.decode()} is not a name of HTTP's.")
    return _DROP if key.startswith(b"x-kvasir-") else _FORWARD


@lru_cache(maxsize=1024)
def _path(target: bytes) -> str:
    """The path of an origin-form target. Raises RequestError."""
    if not _TARGET.fullmatch(target):
        raise RequestError(400, "The request target must be a path that starts with `/`.")
    path = target.split(b"?", 1)[0].decode("ascii")
    if "//" in path or "\\" in path or _DOT_SEGMENT.search(path):
        raise RequestError(400, "The request path must not hold `//`, `\\` or dot segments.")
    return path


class Request:
    """One whole request: what the router needs of it, and the header lines to send on."""

    __slots__ = (
        "answer_lines",
        "body",
        "http10",
        "keep_alive",
        "lines",
        "method",
        "path",
        "request_id",
        "target",
    )

    def __init__(self) -> None:
        self.answer_lines = b""
        """Header lines for its answer, wherever that comes from."""
        self.method = b""
        self.target = b""
        self.path = ""
        self.lines: list[bytes] = []
        self.request_id = b""
        self.keep_alive = True
        self.http10 = False
        self.body = b""


class RequestParser:
    """Bytes of one client connection in, checked `Request`s out.

    `on_request` is called for each request that is complete; `on_continue` when the client waits
    for `100 Continue` before it sends a body that is acceptable.
    """

    def __init__(
        self, limits: Limits, on_request: Callable[[Request], None], on_continue: Callable[[], None]
    ) -> None:
        self._limits = limits
        self._on_request = on_request
        self._on_continue = on_continue
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()
        self.receiving = False
        """Whether a request has begun and is not complete."""

    @property
    def in_body(self) -> bool:
        """Whether the header of the request that is being received is complete."""
        return self.receiving and self._head_done

    @property
    def missing(self) -> int:
        """Bytes of a body still to come, when its length is known."""
        return self._length - self._body_bytes if self.in_body else 0

    def feed(self, data: bytes | memoryview) -> None:
        """Raises `RequestError`; nothing can be read from the connection after that."""
        head_was_open = self.receiving and not self._head_done
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, RequestError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserInvalidMethodError:
            raise RequestError(400, "The request method is not known.") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise RequestError(400, f"Malformed HTTP request: {error}.") from None
        if head_was_open and not self._head_done:
            self._open_bytes += len(data)
            self._check_head_size(self._open_bytes)
        if self._chunked and self.receiving:
            self._check_chunk_overhead(len(data))

    # Called by httptools, in this order.

    def on_message_begin(self) -> None:
        self.receiving = True
        self._request = Request()
        self._head_done = False
        self._head_bytes = 0
        self._open_bytes = 0
        self._headers = 0
        self._hosts = 0
        self._length = 0
        self._chunked = False
        self._expect_continue = False
        self._connection: set[bytes] | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._raw_body_bytes = 0

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
        self._headers += 1
        self._head_bytes += len(name) + len(value) + 4
        if self._headers > self._limits.headers:
            raise RequestError(431, f"The request has more than {self._limits.headers} headers.")
        kind = _kind(name) if len(name) <= _MAX_CACHED else _kind.__wrapped__(name)
        if kind is _FORWARD:
            self._request.lines.append(b"%b: %b\r\n" % (name, value))
        elif kind is not _DROP:
            self._special_header(kind, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        self._check_head_size(self._head_bytes)
        request = self._request
        version = self._parser.get_http_version()
        request.http10 = version == "1.0"
        request.method = self._parser.get_method()
        if version not in ("1.1", "1.0"):
            raise RequestError(505, f"HTTP/{version} is not spoken here; use HTTP/1.1.")
        if request.method not in METHODS:
            raise RequestError(
                405, f"Method {request.method.decode()} is not allowed.", "method_not_allowed"
            )
        self._check_target(request)
        self._check_framing(request)
        request.keep_alive = not request.http10 and self._parser.should_keep_alive()
        if not request.request_id:
            request.request_id = b"%032x" % getrandbits(128)
        if self._connection:
            self._drop_named_headers(request, self._connection)
        self._head_done = True
        if self._expect_continue and (self._chunked or self._length) and not request.http10:
            self._on_continue()

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            raise self._too_large()
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = self._body
        self._request.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        self.receiving = False
        self._on_request(self._request)

    # The rules.

    def _special_header(self, key: bytes, value: bytes) -> None:
        if key == b"host":
            self._hosts += 1
        elif key == b"content-length":
            self._content_length(value)
        elif key == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                raise RequestError(400, "Transfer-Encoding must be `chunked`, once.")
            self._chunked = True
        elif key == b"connection":
            names = {token.strip().lower() for token in value.split(b",")}
            self._connection = (self._connection or set()) | names - {b"keep-alive", b"close"}
        elif key == b"expect":
            if value.lower() != b"100-continue":
                raise RequestError(417, "Only `Expect: 100-continue` is understood.")
            self._expect_continue = True
        elif key == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                self._request.request_id = value
        elif key == b"content-encoding" and value.lower() != b"identity":
            raise RequestError(415, "Compressed request bodies are not accepted; send plain JSON.")

    def _content_length(self, value: bytes) -> None:
        if not value.isdigit() or len(value) > 18:
            raise RequestError(400, "Content-Length must be a decimal number.")
        self._length = int(value)
        if self._length > self._limits.body_bytes:
            raise self._too_large()

    def _check_target(self, request: Request) -> None:
        target = request.target
        if target == b"*" and request.method == b"OPTIONS":
            request.path = "*"
            return
        request.path = _path(target) if len(target) <= _MAX_CACHED else _path.__wrapped__(target)

    def _check_framing(self, request: Request) -> None:
        if self._hosts != 1 and not (request.http10 and self._hosts == 0):
            raise RequestError(400, "The request must have one Host header.")
        if self._chunked and request.http10:
            raise RequestError(400, "HTTP/1.0 has no Transfer-Encoding.")
        if self._parser.should_upgrade():
            raise RequestError(400, "Protocol upgrades are not supported; use plain HTTP/1.1.")

    def _check_head_size(self, size: int) -> None:
        if size > self._limits.header_bytes:
            raise RequestError(
                431, f"The request header is larger than {self._limits.header_bytes} bytes."
            )

    def _check_chunk_overhead(self, size: int) -> None:
        self._raw_body_bytes += size
        if self._raw_body_bytes > _CHUNK_SLACK + _CHUNK_OVERHEAD * self._body_bytes:
            raise RequestError(400, "The chunked body holds far more framing than data.")

    def _too_large(self) -> RequestError:
        return RequestError(
            413,
            f"The request body is larger than {self._limits.body_bytes} bytes.",
            "request_too_large",
        )

    @staticmethod
    def _drop_named_headers(request: Request, names: set[bytes]) -> None:
        request.lines = [
            line for line in request.lines if line.split(b":", 1)[0].lower() not in names
        ]
