"""Usage that an answer tells, found as its parts pass by on their way through a gateway."""

from kvasir_router.wire.sse import EventCutter
from kvasir_router.wire.stream_end import ForeignEnd
from kvasir_router.wire.usage import TAIL_BYTES, Usage, usage_in_body


class AnswerUsage:
    """Keep the end of a body, or of an unfinished event, and nothing else."""

    def __init__(self, *, events: bool, strip: bool = False) -> None:
        """`events`: server-sent events; `strip`: the one with the usage is for the router alone."""
        self.size = 0
        """Bytes of the body so far."""
        self._tail = b""
        self._cutter = EventCutter() if events else None
        self._strip = strip
        self._end = ForeignEnd(strip)

    def take(self, data: bytes, last: bool) -> bytes:
        """Take the next part; return what the client gets now."""
        self.size += len(data)
        if self._cutter is None:
            self._tail = (self._tail + data)[-TAIL_BYTES:]
            return data
        whole = self._cutter.whole(data, last)
        if self._end.mark in whole:
            whole = self._end.read(whole)
        return whole if self._strip else data

    @property
    def found(self) -> Usage | None:
        """Return the token counts; None as long as none were told."""
        return self._end.usage if self._cutter is not None else usage_in_body(self._tail)
