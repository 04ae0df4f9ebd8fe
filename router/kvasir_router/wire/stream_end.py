"""Reading the ends of event streams: usage, a handover, an engine's death.

`mark` is in every part of a stream that is worth reading, and in hardly any other; relaying looks
for nothing else.
"""

from typing import Any, Protocol

import msgspec

from kvasir_router.wire.engine_json import UsageFields
from kvasir_router.wire.usage import Usage, usage_of

HANDOVER = "handover"
ENGINE_DEAD = "engine_dead"


class StreamEnd(Protocol):
    """End of a stream of one kind of engine."""

    mark: bytes
    usage: Usage | None
    interruption: str
    """HANDOVER or ENGINE_DEAD once the engine has given the stream up; else empty."""

    def read(self, events: bytes) -> bytes:
        """Take note of events that hold `mark`; returns what of them the client gets."""
        ...

    @property
    def whole(self) -> bool:
        """Return whether the stream may end here: nothing is known to be missing."""
        ...


class _LastComment(msgspec.Struct):
    u: UsageFields


class ContractEnd:
    """A Kvasir engine's: the comment with the usage precedes the last event.

    JSON strings escape quotes, so no text of a model can look like the mark.
    """

    mark = b': kvasir {"u"'

    __slots__ = ("_seen", "interruption", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.interruption = ""
        self._seen = False

    def read(self, events: bytes) -> bytes:
        """StreamEnd.read: neither a handover nor the engine's death is the client's business."""
        at = events.rfind(self.mark)
        comment, _, event = events[at:].partition(b"\n")
        try:
            last = msgspec.json.decode(comment.removeprefix(b": kvasir "), type=_LastComment)
            self.usage = usage_of(last.u)
        except msgspec.MsgspecError:
            return events
        self._seen = True
        if event.startswith(b"event: handover\n"):
            self.interruption = HANDOVER
        elif event.startswith(b'data: {"error"') and b'"code":"engine_dead"' in event:
            self.interruption = ENGINE_DEAD
        return events[:at] if self.interruption else events

    @property
    def whole(self) -> bool:
        """StreamEnd.whole: the last comment has come."""
        return self._seen


class _Answer(msgspec.Struct):
    usage: UsageFields | None = None


class _Chunk(msgspec.Struct):
    """A chunk of completions, or an event of a message or a response, which is within it."""

    usage: UsageFields | None = None
    choices: list[Any] | None = None
    message: _Answer | None = None
    response: _Answer | None = None


class ForeignEnd:
    """Any other engine's: a chunk with usage and no choices, which is taken out when only the
    router asked for it (`strip`), or an event that tells of usage."""

    mark = b'"usage"'
    interruption = ""
    whole = True

    __slots__ = ("_strip", "usage")

    def __init__(self, strip: bool) -> None:
        self._strip = strip
        self.usage: Usage | None = None

    def read(self, events: bytes) -> bytes:
        """StreamEnd.read."""
        end = b"\r\n\r\n" if b"\r\n\r\n" in events else b"\n\n"
        return end.join([event for event in events.split(end) if not self._is_extra(event)])

    def _is_extra(self, event: bytes) -> bool:
        at = event.find(b"data:")
        if at < 0 or self.mark not in event:
            return False
        try:
            chunk = msgspec.json.decode(event[at + 5 :].strip(), type=_Chunk)
        except msgspec.MsgspecError:
            return False
        inner = chunk.message or chunk.response
        fields = chunk.usage or (inner.usage if inner is not None else None)
        usage = usage_of(fields)
        if usage is None and fields is not None and self.usage is not None:
            # The end of Anthropic's messages need not repeat the input tokens.
            usage = self.usage._replace(completion_tokens=fields.output_tokens)
        self.usage = usage or self.usage
        return self._strip and usage is not None and chunk.choices == []
