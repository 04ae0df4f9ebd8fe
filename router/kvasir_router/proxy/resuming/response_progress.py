"""Position of a broken stream of the Responses API, read from the bytes that its client has."""

import msgspec

from kvasir_router.proxy.resuming.named_events import read_named_events
from kvasir_router.proxy.resuming.stream_progress import Progress

LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class _Begun(msgspec.Struct):
    id: str | None = None
    created_at: int | None = None


class _Event(msgspec.Struct):
    type: str
    delta: str | None = None
    response: _Begun | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


def read_response_progress(transcript: bytes) -> Progress:
    """Read the whole events of a stream. Raises ObstacleError when they are not a response's, or
    nothing is told of their tokens."""
    return read_named_events(transcript, _take)


def _take(progress: Progress, data: bytes) -> int | None:
    event = _decode_event(data)
    if event.response is not None:
        progress.id = progress.id or event.response.id
        progress.created = progress.created or event.response.created_at
    progress.done = progress.done or event.type in LAST_EVENTS
    return None if event.delta is None else len(event.delta)
