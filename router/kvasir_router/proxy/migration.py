"""Going on with a broken stream: what its client has, and the request that asks for the rest.

The engine contract (kvasir_engine.server.openai.router_contract) says why the bytes that the client
has are enough. They are parsed here and nowhere else, and only when a stream has broken.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.wire.envelope import is_dense
from kvasir_router.wire.long_bodies.long_prompt import token_ids_in
from kvasir_router.wire.query import Query

_DECIDING = (
    *("resume", "n", "best_of", "use_beam_search", "stream_options"),
    *("logprobs", "prompt_logprobs", "return_token_ids"),
)
_MAX_FIELD = 1024

# What a unary answer says of each token, which a resumed engine does not know of earlier ones.
_TOLD_OF_TOKENS = ("logprobs", "prompt_logprobs", "return_token_ids")


class Obstacle(StrEnum):
    """Obstacle to resuming a stream: a metric's label."""

    OFF = "off"
    ROUTE = "route"
    """Not a completion."""
    CHOICES = "several_choices"
    RESUMED = "resumed_by_client"
    TOO_LARGE = "too_large"
    """The transcript was not kept to the end."""
    CONTRACT = "no_contract"
    """The engine does not say what a resume needs."""
    MOVES = "moves_spent"
    REPLICA = "no_replica"
    """No other one of the same model may take it."""
    REFUSED = "refused"
    """The other replica did not answer with a stream."""
    NOTHING_LEFT = "completed"
    """The client has it all but the word that it is over."""


class ObstacleError(Exception):
    """The stream cannot be resumed."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.value)
        self.obstacle = obstacle


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
    """The client has [DONE]: only the end of the HTTP answer is missing."""


class _HandedChoice(msgspec.Struct):
    t: list[int] = []


class _Handover(msgspec.Struct):
    choices: list[_HandedChoice]
    seed: int | None = None


class _HandoverError(msgspec.Struct):
    handover: _Handover


class _HandoverBody(msgspec.Struct):
    error: _HandoverError


class _Comment(msgspec.Struct):
    i: int | None = None
    t: list[int] = []
    s: int | None = None
    c: int | None = None


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


_decode_comment = msgspec.json.Decoder(_Comment).decode
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
    if comment.i is not None:
        progress.opened = True
    if comment.s is not None and progress.seed is None:
        progress.seed, progress.cached_tokens = comment.s, comment.c
    progress.token_ids += comment.t
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


def continuation(query: Query, transcript: Transcript | None) -> bytes:
    """The body with which another replica goes on with a stream. Raises ObstacleError."""
    body = _movable_body(query)
    if transcript is None:
        raise ObstacleError(Obstacle.TOO_LARGE)
    progress = read_progress(transcript.content())
    options = body.get("stream_options")
    wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    if progress.done or (progress.finished and (progress.has_usage or not wants_usage)):
        raise ObstacleError(Obstacle.NOTHING_LEFT)
    return resume_body(query.request.body, progress)


def choose_alike(
    query: Query, model: Model, replica: Replica, tried: Sequence[Replica]
) -> Choice | None:
    """A replica that may go on with `replica`'s stream now; None when there is none."""
    unlike = [each for each in model.replicas.values() if not _serve_alike(each, replica)]
    return model.choose(query, [*tried, *unlike])


def can_wait(model: Model, replica: Replica) -> bool:
    """Return whether a replica may yet be able to go on with `replica`'s stream: itself, one that
    has not said what it serves, or, where all are ending, a successor that is not known yet."""
    staying = [each for each in model.replicas.values() if not each.draining]
    return not staying or any(
        _serve_alike(each, replica) or not each.ever_ready for each in staying
    )


def after_handover(query: Query, error_body: bytes) -> bytes:
    """The body with which another replica goes on with a unary request that a draining one gave
    up, or the original one when its answer needs what only that replica knew of its tokens."""
    with suppress(msgspec.MsgspecError, ObstacleError, ValueError):
        body = _movable_body(query)
        if any(body.get(name) for name in _TOLD_OF_TOKENS):
            return query.request.body
        state = msgspec.json.decode(error_body, type=_HandoverBody).error.handover
        [sample] = state.choices
        progress = Progress(seed=state.seed, token_ids=sample.t)
        return resume_body(query.request.body, progress)
    return query.request.body


def _serve_alike(one: Replica, other: Replica) -> bool:
    """Return whether both are engines of a kind that say they compute the same: the model that
    they loaded, its revision, dtype, quantisation and the type of its KV cache."""
    return one.spec.engine is other.spec.engine and one.serves == other.serves


def _movable_body(query: Query) -> Mapping[str, Any]:
    """Raises ObstacleError for requests whose answers cannot be resumed."""
    if not query.request.endpoint.resumed:
        raise ObstacleError(Obstacle.ROUTE)
    try:
        body = _deciding(query)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ObstacleError(Obstacle.ROUTE) from None
    if "resume" in body:
        raise ObstacleError(Obstacle.RESUMED)
    one = (None, 1)
    several = body.get("n") not in one or body.get("best_of") not in one
    if several or body.get("use_beam_search") or _prompts(body) > 1:
        raise ObstacleError(Obstacle.CHOICES)
    return body


def _deciding(query: Query) -> Mapping[str, Any]:
    """Return the fields that decide whether a stream can move. Raises what decoding does."""
    request = query.request
    outline = request.outline
    if outline is None:
        if is_dense(request.body):
            raise ObstacleError(Obstacle.TOO_LARGE)
        return query.body
    fields = {name: outline.raw(request.body, name) for name in _DECIDING}
    found: dict[str, Any] = {
        name: msgspec.json.decode(raw) if len(raw) <= _MAX_FIELD else True
        for name, raw in fields.items()
        if raw
    }
    prompt = outline.members.get("prompt")
    if prompt is not None and request.body[prompt.start] == ord("["):
        ids = token_ids_in(request.body, outline)
        found["prompt"] = [0] if ids else [""] * min(prompt.values - 1, 2)
    return found


def _prompts(body: Any) -> int:
    """Prompts in a completion's body; a list of ids is one."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


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
        "id": progress.id,
        "created": progress.created,
    }
    at = body.index(b"{") + 1
    return b'%b"resume":%b,%b' % (body[:at], msgspec.json.encode(resume), body[at:])
