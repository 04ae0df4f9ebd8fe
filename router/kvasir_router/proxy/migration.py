"""Going on with a broken stream: what its client has, and the request that asks for the rest.

The engine contract (kvasir_engine.server.openai.router_contract) says why the bytes that the client
has are enough. They are parsed in `resuming/` and nowhere else, and only when a stream has
broken.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.resuming.message_progress import read_message_progress
from kvasir_router.proxy.resuming.obstacle import Obstacle, ObstacleError
from kvasir_router.proxy.resuming.response_progress import read_response_progress
from kvasir_router.proxy.resuming.stream_progress import Progress, read_progress, resume_body
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.wire.envelope import is_dense
from kvasir_router.wire.long_bodies.long_prompt import token_ids_in
from kvasir_router.wire.query import Query

_DECIDING = (
    *("resume", "n", "best_of", "use_beam_search", "stream_options"),
    *("logprobs", "prompt_logprobs", "return_token_ids"),
    *("include", "top_logprobs"),
)
_MAX_FIELD = 1024
_READERS = {
    "completion": read_progress,
    "response": read_response_progress,
    "message": read_message_progress,
}
"""By the protocol of a stream's events."""

# What a unary answer says of each token, which a resumed engine does not know of earlier ones.
_TOLD_OF_TOKENS = ("logprobs", "prompt_logprobs", "return_token_ids")


class _HandedChoice(msgspec.Struct):
    t: list[int] = []


class _Handover(msgspec.Struct):
    choices: list[_HandedChoice]
    seed: int | None = None


class _HandoverError(msgspec.Struct):
    handover: _Handover


class _HandoverBody(msgspec.Struct):
    error: _HandoverError


def continuation(query: Query, transcript: Transcript | None) -> bytes:
    """The body with which another replica goes on with a stream. Raises ObstacleError."""
    body = _movable_body(query)
    if transcript is None:
        raise ObstacleError(Obstacle.TOO_LARGE)
    progress = _READERS[query.request.endpoint.events](transcript.content())
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
    if query.request.endpoint.events == "response" and _repeats_logprobs(body):
        raise ObstacleError(Obstacle.LOGPROBS)
    return body


def _repeats_logprobs(body: Mapping[str, Any]) -> bool:
    """Return whether a response has log-probabilities: an engine that goes on with it does not know
    those of the tokens before, and it repeats all of them at its end."""
    include = body.get("include")
    if isinstance(include, list):
        include = "message.output_text.logprobs" in include
    return bool(include or body.get("top_logprobs"))


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
