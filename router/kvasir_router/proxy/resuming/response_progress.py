"""Position of a broken stream of the Responses API, read from the bytes that its client has.

Several events may follow one comment, which has the ids of all of them. An engine that goes on
makes every event again: those that add no text come in one order whatever the cuts, so their number
and that of the text's characters say which ones the client has.
"""

import msgspec

from kvasir_router.proxy.resuming.obstacle import Obstacle, ObstacleError
from kvasir_router.proxy.resuming.stream_progress import Comment, Progress

_COMMENT = b": kvasir "
_DATA = b"data: "
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class _Begun(msgspec.Struct):
    id: str | None = None
    created_at: int | None = None


class _Event(msgspec.Struct):
    type: str
    delta: str | None = None
    response: _Begun | None = None


_decode_comment = msgspec.json.Decoder(Comment).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def read_response_progress(transcript: bytes) -> Progress:
    """Read the whole events of a stream. Raises ObstacleError when they are not a response's, or
    nothing is told of their tokens."""
    progress = Progress()
    try:
        for event in transcript.split(b"\n\n"):
            for line in event.split(b"\n") if event else ():
                if line.startswith(_COMMENT):
                    progress.hear(_decode_comment(line.removeprefix(_COMMENT)))
                elif line.startswith(_DATA):
                    _read_event(progress, _decode_event(line.removeprefix(_DATA)))
    except msgspec.MsgspecError:
        raise ObstacleError(Obstacle.CONTRACT) from None
    if progress.seed is None:
        raise ObstacleError(Obstacle.CONTRACT)
    return progress


def _read_event(progress: Progress, event: _Event) -> None:
    progress.sent_events += 1
    if event.delta is None:
        progress.sent_steps += 1
    else:
        progress.sent_chars += len(event.delta)
    if event.response is not None:
        progress.id = progress.id or event.response.id
        progress.created = progress.created or event.response.created_at
    progress.done = progress.done or event.type in LAST_EVENTS
