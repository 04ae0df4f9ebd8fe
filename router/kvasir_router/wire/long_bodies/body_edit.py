"""Long bodies that are edited where they lie: each copy of 60 MiB takes 35 ms, most of them for new
pages of memory."""

from collections.abc import Callable
from io import BytesIO

from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_scan import Outline, ValueSpan


def replace_member(request: Request, outline: Outline, name: str, value: bytes) -> None:
    """Give a member another value. What is shorter is filled up with spaces, so that nothing behind
    it moves."""
    span = outline.members[name]
    grown = len(value) - (span.end - span.start)
    if grown <= 0:
        _edit(request, lambda held: _put(held, span.start, value + b" " * -grown))
        outline.members[name] = ValueSpan(span.start, span.start + len(value), span.values)
        return
    replace_bytes(request, span.start, span.end, value)
    request.outline = outline.after_replacing(name, len(value))


def replace_bytes(request: Request, start: int, end: int, value: bytes) -> None:
    """Put `value` in place of the body's bytes from `start` to `end`; what is behind them moves."""
    size = len(request.body)
    grown = len(value) - (end - start)

    def replace(held: BytesIO) -> None:
        if grown > 0:
            _put(held, size, b" " * grown)
        if grown:
            with held.getbuffer() as view:
                view[end + grown : size + grown] = view[end:size]
        _put(held, start, value)
        held.truncate(size + grown)

    _edit(request, replace)


def append_member(request: Request, outline: Outline, name: str, value: bytes) -> None:
    """Put a member behind all others: of several of a name the last one counts."""
    at = request.body.rindex(b"}")
    mark = b',"%b":' % name.encode()

    def append(held: BytesIO) -> None:
        _put(held, at, b"%b%b}" % (mark, value))
        held.truncate()

    _edit(request, append)
    start = at + len(mark)
    outline.members[name] = ValueSpan(start, start + len(value), 1)
    outline.size = len(request.body)


def add_member(request: Request, name: str, value: bytes) -> None:
    """Put a member behind all others of the request's body, long or short, which is an object with
    one at least."""
    if request.outline is not None:
        append_member(request, request.outline, name, value)
        return
    body = request.body.rstrip(b" \t\r\n")
    request.body = b'%b,"%b":%b}' % (body[:-1], name.encode(), value)


def _put(held: BytesIO, at: int, data: bytes) -> None:
    held.seek(at)
    held.write(data)


def _edit(request: Request, change: Callable[[BytesIO], None]) -> None:
    """Change the body in its buffer. That copies it unless nobody else has it."""
    held = request.buffer
    if held is None:
        held = BytesIO(request.body)
    request.body = b""
    change(held)
    request.body = held.getvalue()
