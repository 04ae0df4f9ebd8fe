"""Position of a broken stream as its client sees it, read from the bytes that the client has."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvasir_router.proxy.resuming.obstacle import Obstacle, ObstacleError


class Comment(msgspec.Struct):
    """Comment before an event: what the engine tells the router of its tokens."""

    i: int | None = None
    t: list[int] = []
    s: int | None = None
    c: int | None = None


@dataclass(slots=True)
class Progress:
    """Position of a stream of one choice, as its client sees it."""

    id: str | None = None
    created: int | None = None
    seed: int | None = None
    cached_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    sent_chars: int = 0
    """Unicode code points of the choice's content, reasoning and arguments, and one a call."""
    opened: bool = False
    """The client has an event of the choice."""
    finished: bool = False
    """The client has the finish reason."""
    has_usage: bool = False
    """The client has the chunk with the usage."""
    done: bool = False
    """The client has the last event: only the end of the HTTP answer is missing."""
    sent_events: int = 0
    """Events of a response or a message that the client has."""
    sent_steps: int = 0
    """Those of them that add no text."""

    def hear(self, comment: Comment) -> None:
        """Take what a comment tells."""
        if comment.i is not None:
            self.opened = True
        if comment.s is not None and self.seed is None:
            self.seed, self.cached_tokens = comment.s, comment.c
        self.token_ids += comment.t


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function = msgspec.field(default_factory=_Function)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _StreamChunk(msgspec.Struct):
    id: str | None = None
    created: int | None = None
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None


_decode_comment = msgspec.json.Decoder(Comment).decode
_decode_chunk = msgspec.json.Decoder(_StreamChunk).decode


def read_progress(transcript: bytes) -> Progress:
    """Read the whole events of a stream. Raises ObstacleError when an event lacks its comment or
    is none of a completion."""
    progress = Progress()
    try:
        for event in transcript.split(b"\n\n"):
            if event:
                _read_event(progress, event)
    except msgspec.MsgspecError:
        raise ObstacleError(Obstacle.CONTRACT) from None
    return progress


def _read_event(progress: Progress, event: bytes) -> None:
    first, _, rest = event.partition(b"\n")
    if not first.startswith(b": kvasir ") or not rest.startswith(b"data: "):
        raise ObstacleError(Obstacle.CONTRACT)
    if rest == b"data: [DONE]":
        progress.done = True
        return
    comment = _decode_comment(first.removeprefix(b": kvasir "))
    chunk = _decode_chunk(rest.removeprefix(b"data: "))
    progress.hear(comment)
    progress.id = progress.id or chunk.id
    progress.created = progress.created or chunk.created
    for choice in chunk.choices:
        progress.sent_chars += len(choice.text or "")
        if choice.delta is not None:
            progress.sent_chars += _units(choice.delta)
        progress.finished = progress.finished or choice.finish_reason is not None
    if not chunk.choices and chunk.usage is not None:
        progress.has_usage = True


def _units(delta: _Delta) -> int:
    """Return the units of a delta, as the engine counts them (ResumeBody.sent_chars)."""
    units = len(delta.content or "") + len(delta.reasoning_content or "")
    for call in delta.tool_calls or ():
        units += bool(call.function.name) + len(call.function.arguments or "")
    return units


def resume_body(body: bytes, progress: Progress) -> bytes:
    """The original body with `resume`, as the contract has it."""
    resume = {
        "output_token_ids": progress.token_ids,
        "seed": progress.seed,
        "sample_index": 0,
        "sent_chars": progress.sent_chars,
        "opened": progress.opened,
        "finished": progress.finished,
        "cached_tokens": progress.cached_tokens,
        "sent_events": progress.sent_events,
        "sent_steps": progress.sent_steps,
        "id": progress.id,
        "created": progress.created,
    }
    at = body.index(b"{") + 1
    return b'%b"resume":%b,%b' % (body[:at], msgspec.json.encode(resume), body[at:])
