"""A request as the router sees it: its limits, its refusal, and what is kept of it."""

import re
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import inf

from kvasir_router.wire.endpoints import Endpoint, endpoint_of
from kvasir_router.wire.long_bodies.body_scan import BodyScan, Outline
from kvasir_router.wire.long_bodies.form_scan import FormScan

# Longer targets are looked at anew each time, so that the cache stays small.
_MAX_CACHED = 256

# A body is refused only beyond so many bytes: short requests are served whatever long ones do, and
# so little for each connection is bounded by their number.
_ALWAYS_TAKEN = 16 * 1024

_TARGET = re.compile(rb"/[!\"$-~]*")
_DOT_SEGMENT = re.compile(r"(/|%2f)(\.|%2e){1,2}(/|%2f|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one request."""

    header_bytes: int = 32 * 1024
    """Request line and headers together."""

    headers: int = 100
    target_bytes: int = 8 * 1024
    body_bytes: int = 64 * 1024 * 1024
    buffered_bytes: int = 512 * 1024 * 1024
    """Bytes of the bodies of all requests that a process receives or answers."""


class RequestError(Exception):
    """A request that is refused: `status`, an OpenAI error `code`, and one sentence on why."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str = "bad_request",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.retry_after = retry_after


class BodyBudget:
    """Bytes of request bodies that a process holds, for all its connections together.

    A body counts from its first byte until its request is answered: it may be sent again.
    """

    __slots__ = ("_limit", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int, received: int) -> None:
        """Count `size` more bytes of a body of which `received` are here now. Raises
        RequestError."""
        self.used += size
        self._check(self.used, received)

    def check(self, length: int) -> None:
        """Check whether a body of this length, which has not begun to come, may. Raises
        RequestError."""
        self._check(self.used + length, length)

    def _check(self, used: int, size: int) -> None:
        if used > self._limit and size > _ALWAYS_TAKEN:
            raise RequestError(
                503,
                "The router holds all the bytes of requests that it may; try again soon.",
                "overloaded",
                retry_after=1,
            )

    def give_back(self, size: int) -> None:
        """Stop counting these bytes."""
        self.used -= size


@lru_cache(maxsize=1024)
def _short_path(target: bytes) -> str:
    if not _TARGET.fullmatch(target):
        raise RequestError(400, "The request target must be a path that starts with `/`.")
    path = target.split(b"?", 1)[0].decode("ascii")
    if "//" in path or "\\" in path or _DOT_SEGMENT.search(path):
        raise RequestError(400, "The request path must not hold `//`, `\\` or dot segments.")
    return path


def path_of(target: bytes) -> str:
    """The path of an origin-form target. Raises RequestError."""
    return _short_path(target) if len(target) <= _MAX_CACHED else _short_path.__wrapped__(target)


def seconds_of(value: bytes) -> float:
    """A deadline. Raises RequestError."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < inf:
        shown = value[:40].decode("ascii", "replace")
        raise RequestError(
            400, f"x-request-timeout must be a number of seconds above 0, not {shown!r}."
        )
    return seconds


class Request:
    """One whole request: what the router needs of it, and the header lines to send on."""

    def __init__(self) -> None:
        self.answer_lines = b""
        """Header lines for its answer, wherever that comes from."""
        self.authorization = b""
        """The header's value; it is not among `lines`: a key for this router goes no further."""
        self.api_key = b""
        """Value of X-Api-Key, in which Anthropic's clients send a key; not among `lines` either."""
        self.client = ""
        """Address of the client, for logs."""
        self.method = b""
        self.target = b""
        self.path = ""
        self.lines: list[bytes] = []
        self.request_id = b""
        self.keep_alive = True
        self.http10 = False
        self.body = b""
        self.buffer: BytesIO | None = None
        """Buffer that a long body is in, for who edits it; the body itself is its content."""
        self.scan: BodyScan | FormScan | None = None
        """Scan of its body, if that is long; taken by whoever reads what it found."""
        self.outline: Outline | None = None
        """Outline of its body, if that was scanned."""
        self.timeout = 0.0
        """Seconds that its answer may take; 0 = the router's default."""

    @property
    def endpoint(self) -> Endpoint:
        """Return the row of the table for its path."""
        return endpoint_of(self.path)

    @property
    def credentials(self) -> bytes:
        """Return the Authorization that counts: the one that came, else that of X-Api-Key."""
        if self.authorization or not self.api_key:
            return self.authorization
        return b"Bearer " + self.api_key

    def send_credentials(self) -> None:
        """Let the replica see them: this router asks for none."""
        if self.authorization:
            self.lines.append(b"Authorization: %b\r\n" % self.authorization)
        if self.api_key:
            self.lines.append(b"X-Api-Key: %b\r\n" % self.api_key)

    def like(self, request_id: bytes) -> "Request":
        """One with the same header, its body to come."""
        made = Request.__new__(Request)
        made.answer_lines = made.body = b""
        made.scan = made.outline = made.buffer = None
        made.authorization = self.authorization
        made.api_key = self.api_key
        made.client = ""
        made.method = self.method
        made.target = self.target
        made.path = self.path
        made.lines = self.lines.copy()
        made.request_id = request_id
        made.keep_alive = self.keep_alive
        made.http10 = self.http10
        made.timeout = self.timeout
        return made
