"""Reasons to refuse a request: pure checks before it is queued."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import ParameterError
from kvasir_engine.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Refusal:
    """HTTP `status`, one sentence, the parameter at fault, and seconds to wait before a retry."""

    status: int
    message: str
    param: str | None = None
    retry_after: int | None = None


def check(scheduler: Scheduler, request: EngineRequest) -> Refusal | None:
    """None, or the first reason why `request` cannot be queued."""
    return (
        _tokens(scheduler, request)
        or _length(scheduler, request)
        or _samples(scheduler, request)
        or _queue(scheduler, request)
    )


def _tokens(scheduler: Scheduler, request: EngineRequest) -> Refusal | None:
    # Whoever made the request has checked this; no step may ever see such an id.
    try:
        request.verify_vocabulary(scheduler.vocab_size)
    except ParameterError as error:
        return Refusal(400, str(error), error.param)
    return None


def _length(scheduler: Scheduler, request: EngineRequest) -> Refusal | None:
    prompt, most = len(request.prompt_token_ids), scheduler.max_model_len
    if prompt == 0:
        return Refusal(400, "The prompt must have at least one token.", "prompt")
    if prompt >= most:
        return Refusal(
            400,
            f"The prompt has {prompt} tokens, but the model's context is {most} tokens "
            "and at least one must be left to generate.",
            "prompt",
        )
    resumed = len(request.resume.output_token_ids) if request.resume else 0
    room = min(most - prompt, request.params.max_tokens or most)
    if resumed >= room:
        return Refusal(
            400,
            f"resume brings {resumed} output tokens, but the request ends after {room}; "
            "there is nothing left to generate.",
            "resume",
        )
    return None


def _samples(scheduler: Scheduler, request: EngineRequest) -> Refusal | None:
    n, rows = request.params.n, scheduler.rows.num_rows
    if n > rows:
        return Refusal(400, f"n must be at most {rows} (--max-num-seqs), got {n}.", "n")
    if n > 1 and request.resume is not None:
        return Refusal(400, "resume continues one sample; n must be 1.", "n")
    if request.params.use_beam_search and request.resume is not None:
        return Refusal(400, "A beam search cannot be resumed; leave resume out.", "resume")
    together = 1 if request.params.use_beam_search else n
    wanted = scheduler.admitter.blocks_to_admit(len(request.prompt_token_ids), together)
    for blocks, pool in zip(wanted, scheduler.kv.pools, strict=True):
        if blocks > pool.capacity:
            return Refusal(
                400,
                f"The prompt with n = {together} needs {blocks} KV blocks, but the cache has "
                f"{pool.capacity}; lower n or shorten the prompt.",
                "n",
            )
    return None


def _queue(scheduler: Scheduler, request: EngineRequest) -> Refusal | None:
    most = scheduler.settings.max_queued_requests
    waiting = len(scheduler.waiting)
    if waiting < most:
        return None
    return Refusal(
        429,
        f"{waiting} requests wait already (--max-queued-requests {most}); try again later.",
        retry_after=1,
    )
