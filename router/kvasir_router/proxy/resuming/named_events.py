"""Position of a broken stream whose events have names: of the Responses or the Messages API.

Several events may follow one comment, which has the ids of all of them. An engine that goes on
makes every event again: those that add no text come in one order whatever the cuts, so their number
and that of the text's characters say which ones the client has.
"""

from collections.abc import Callable

import msgspec

from kvasir_router.proxy.resuming.obstacle import Obstacle, ObstacleError
from kvasir_router.proxy.resuming.stream_progress import Comment, Progress

_COMMENT = b": kvasir "
_DATA = b"data: "
_decode_comment = msgspec.json.Decoder(Comment).decode


def read_named_events(transcript: bytes, take: Callable[[Progress, bytes], int | None]) -> Progress:
    """Read the whole events of a stream. `take` notes an event's data, and returns the characters
    of text that it adds; None for an event that adds none. Raises ObstacleError where it raises a
    MsgspecError, or nothing is told of the tokens."""
    progress = Progress()
    try:
        for line in transcript.split(b"\n"):
            if line.startswith(_COMMENT):
                progress.hear(_decode_comment(line.removeprefix(_COMMENT)))
            elif line.startswith(_DATA):
                _count(progress, take(progress, line.removeprefix(_DATA)))
    except msgspec.MsgspecError:
        raise ObstacleError(Obstacle.CONTRACT) from None
    if progress.seed is None:
        raise ObstacleError(Obstacle.CONTRACT)
    return progress


def _count(progress: Progress, chars: int | None) -> None:
    progress.sent_events += 1
    if chars is None:
        progress.sent_steps += 1
    else:
        progress.sent_chars += chars
