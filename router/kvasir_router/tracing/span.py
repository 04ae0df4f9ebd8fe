"""Trace contexts as they travel in a header, and the router's span of one request.

https://www.w3.org/TR/trace-context/. A request's `traceparent` is replaced by one that names the
router's span as the parent of the engine's. Without tracing it is passed on as it is, like any
header.
"""

import re
import time
from dataclasses import dataclass, field
from random import getrandbits, random

from kvasir_router.wire.http_request import Request

_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_NAME = b"traceparent:"
_SAMPLED = 1


@dataclass(slots=True, eq=False)
class Span:
    """Span from a whole request to the end of its answer."""

    trace_id: int
    """Id of the trace, 128 bits."""
    parent_id: int
    """Id of the parent span, 64 bits; 0 for the first span of a trace."""
    span_id: int = field(default_factory=lambda: getrandbits(64) or 1)
    started: int = field(default_factory=time.time_ns)
    """Unix nanoseconds."""


def begin_span(request: Request, ratio: float) -> Span | None:
    """The request's span, its header replaced; None when it is not sampled: the caller says so, or,
    when there is no caller's trace, for all but `ratio` of requests."""
    at = next(
        (i for i, line in enumerate(request.lines) if line[:12].lower() == _NAME),
        None,
    )
    found = None if at is None else _TRACEPARENT.fullmatch(request.lines[at][12:].strip())
    if found is None:
        if random() >= ratio:
            return None
        span = Span(getrandbits(128) or 1, 0)
    else:
        if not int(found[3], 16) & _SAMPLED:
            return None
        span = Span(int(found[1], 16), int(found[2], 16))
    line = b"traceparent: 00-%032x-%016x-01\r\n" % (span.trace_id, span.span_id)
    if at is None:
        request.lines.append(line)
    else:
        request.lines[at] = line
    return span
