"""Position of a broken stream of the Messages API, read from the bytes that its client has."""

import msgspec

from kvasir_router.proxy.resuming.named_events import read_named_events
from kvasir_router.proxy.resuming.stream_progress import Progress

_DELTA = "content_block_delta"
_LAST = "message_stop"


class _Begun(msgspec.Struct):
    id: str | None = None


class _Delta(msgspec.Struct):
    """Text that a block gets; the end of the message has none of these."""

    text: str = ""
    thinking: str = ""
    partial_json: str = ""


class _Event(msgspec.Struct):
    type: str
    delta: _Delta | None = None
    message: _Begun | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


def read_message_progress(transcript: bytes) -> Progress:
    """Read the whole events of a stream. Raises ObstacleError when they are not a message's, or
    nothing is told of their tokens."""
    return read_named_events(transcript, _take)


def _take(progress: Progress, data: bytes) -> int | None:
    event = _decode_event(data)
    if event.message is not None:
        progress.id = progress.id or event.message.id
    progress.done = progress.done or event.type == _LAST
    if event.type != _DELTA or event.delta is None:
        return None
    return len(event.delta.text) + len(event.delta.thinking) + len(event.delta.partial_json)
