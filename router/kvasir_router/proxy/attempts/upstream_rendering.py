"""Request of a client as a server that is not of the fleet gets it, and the head of its answer as
the client gets it.

Nothing that is the fleet's or a client's own goes there: header lines are those of a short list,
with the upstream's own key, and the body is without what the router has put into it. Nothing of an
answer's head comes back but what tells how to read the answer: cookies and the account are the
upstream's own.
"""

from copy import copy
from email.utils import parsedate_to_datetime
from time import time

import msgspec

from kvasir_router.discovery.specs import EngineKind, Upstream
from kvasir_router.proxy.attempts.model_field import renamed
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_scan import Outline
from kvasir_router.wire.query import Query

SENT = frozenset(
    {
        b"accept",
        b"anthropic-beta",
        b"anthropic-version",
        b"content-type",
        b"idempotency-key",
        b"openai-beta",
        b"user-agent",
    }
)
"""Headers of clients that an upstream gets."""
RETURNED = frozenset(
    {b"cache-control", b"content-disposition", b"content-type", b"retry-after", b"x-should-retry"}
)
"""Headers of an upstream's answer that the client gets."""
MAX_RETRY_SECONDS = 86400.0

_API = b"/v1/"
_MARKS = (b',"kept_by_router":true', b',"kept_by_router":false')


def target_of(request: Request, upstream: Upstream) -> bytes:
    """Return the request's target at the upstream. A path outside of `/v1` is taken from beside it:
    `/rerank` of `https://host/x/v1` is `/x/rerank`."""
    prefix = upstream.prefix.encode()
    if request.target.startswith(_API):
        return prefix + request.target[len(_API) - 1 :]
    return prefix.removesuffix(b"/v1") + request.target


def head_lines(request: Request, upstream: Upstream) -> bytes:
    """Return the header lines of a request: those of the client that are sent, and the key."""
    lines = [line for line in request.lines if line.partition(b":")[0].lower() in SENT]
    return b"".join((*lines, upstream.key_line))


def body_of(query: Query, upstream: Upstream, engine: EngineKind) -> tuple[bytes, Outline | None]:
    """Return the body with the upstream's name of the model, and its outline if it has one. An
    `engine` that is known takes the tenant's salt."""
    request = query.request
    body, outline = _without_marks(query, salt=engine is EngineKind.OPENAI)
    return renamed(request, body, upstream.model, outline) if upstream.model else (body, outline)


def _without_marks(query: Query, *, salt: bool) -> tuple[bytes, Outline | None]:
    """Return the body without the members that the router has put behind all others, the `salt` if
    told to: a server that does not know them may refuse them."""
    body, outline = query.request.body, query.request.outline
    given = query.envelope.cache_salt
    marks = list(_MARKS)
    if salt and query.salted and isinstance(given, str):
        marks.append(b',"cache_salt":' + msgspec.json.encode(given))
    size = len(body)
    for mark in marks:
        at = body.rfind(mark, max(len(body) - 512, 0))
        if at >= 0:
            body = body[:at] + body[at + len(mark) :]
    if outline is not None and len(body) != size:
        outline = copy(outline)
        outline.size -= size - len(body)
    return body, outline


def returned_lines(lines: list[bytes]) -> list[bytes]:
    """Return those of an answer's header lines that the client gets."""
    return [line for line in lines if line.partition(b":")[0].lower() in RETURNED]


def retry_seconds(lines: list[bytes]) -> float:
    """Return the seconds of an answer's Retry-After (RFC 9110, 10.2.3), at most a day; 0 = it has
    none that can be read."""
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"retry-after":
            return min(max(_seconds(value.strip().decode("latin-1")), 0.0), MAX_RETRY_SECONDS)
    return 0.0


def _seconds(value: str) -> float:
    if value.isdecimal():
        return float(value[:9])
    try:
        return parsedate_to_datetime(value).timestamp() - time()
    except (ValueError, OverflowError):
        return 0.0
