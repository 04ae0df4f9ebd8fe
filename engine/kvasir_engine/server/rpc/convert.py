"""Conversion between the protobuf messages of the Engine service and the engine's own types."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError

from kvasir.wire.prompt_report.report import PromptReport
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.core.client import LoadSnapshot
from kvasir_engine.request import LogprobEntry, Resume
from kvasir_engine.sampling_params import ParameterError, SamplingParams
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai.intake import Intake
from kvasir_engine.server.openai.preparer import PreparedRequest
from kvasir_engine.server.openai.schema import CompletionBody
from kvasir_engine.text.output_assembler import OutputAssembler
from kvasir_engine.text.sample_state import SampleUpdate

MAX_REQUEST_ID_CHARS = 256
_LISTS = frozenset({"stop", "stop_token_ids", "bad_words"})
_INLINE_CHARS = 4096
"""Text up to this long is tokenised on the event loop: a thread would cost more than it saves."""


async def prepare_generate(raw: bytes, intake: Intake) -> PreparedRequest:
    """Return the run of a GenerateRequest's bytes, with its flags as a completion's. Raises
    ApiError (400)."""
    try:
        message = pb.GenerateRequest.FromString(raw)
        run = await prompt_run(message, intake)
    except ParameterError as error:
        raise invalid(str(error), error.param) from error
    except DecodeError as error:
        raise invalid(f"the message is no GenerateRequest: {error}.") from error
    ids = message.return_token_ids or not intake.maker.tokenizer.knows_text
    flags = CompletionBody(return_token_ids=ids)
    return PreparedRequest(flags, [run])


async def prompt_run(message: pb.GenerateRequest, intake: Intake) -> PromptRun:
    """The run for the core. Raises ParameterError for the first bad field."""
    if (size := len(message.request_id)) > MAX_REQUEST_ID_CHARS:
        raise ParameterError(
            "request_id", f"request_id takes at most {MAX_REQUEST_ID_CHARS} characters, got {size}."
        )
    params = _sampling_params(message.sampling)
    resume = _resume(message)
    if resume is not None and resume.seed is not None:
        params.seed = resume.seed
    prompt = await _prompt(message, intake)
    await intake.turns.pause()
    request = intake.maker.request(
        message.request_id or f"grpc-{uuid.uuid4().hex}",
        prompt,
        _fit(params, len(prompt), intake.max_model_len),
        priority=message.priority,
        cache_salt=message.cache_salt,
        resume=resume,
    )
    return PromptRun(
        request,
        OutputAssembler(request, intake.maker.tokenizer),
        prompt_text=None,
        sent_chars=message.resume.sent_chars,
        finish_sent=message.resume.finished,
    )


def _sampling_params(message: pb.SamplingParams) -> SamplingParams:
    given: dict[str, Any] = {"max_tokens": None}
    for field, value in message.ListFields():
        if field.name == "allowed_token_ids":
            given[field.name] = list(value.ids)
        elif field.name == "logit_bias":
            given[field.name] = dict(value)
        else:
            given[field.name] = list(value) if field.name in _LISTS else value
    return SamplingParams(**given)


async def _prompt(message: pb.GenerateRequest, intake: Intake) -> list[int]:
    kind = message.WhichOneof("prompt")
    if kind == "token_ids":
        prompt = list(message.token_ids.ids)
    elif kind == "text":
        prompt = await _encode(message, intake)
    else:
        raise ParameterError("prompt", "the prompt is missing; set text or token_ids.")
    if not prompt:
        raise ParameterError(kind, f"{kind} has no tokens; give at least one.")
    return prompt


async def _encode(message: pb.GenerateRequest, intake: Intake) -> list[int]:
    intake.maker.check_text("text")
    text, tokenizer, max_model_len = message.text, intake.maker.tokenizer, intake.max_model_len
    if len(text) > max_model_len * tokenizer.longest_token_chars:
        raise ParameterError(
            "text",
            f"a prompt of {len(text)} characters cannot fit the context of {max_model_len} "
            "tokens; shorten it.",
        )
    special = message.add_special_tokens or not message.HasField("add_special_tokens")
    if len(text) <= _INLINE_CHARS:
        return tokenizer.encode(text, add_special_tokens=special)
    ids = await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=special)
    await intake.turns.enter()
    return ids


def _fit(params: SamplingParams, prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """Check prompt and output against the context; no max_tokens becomes what is left of it."""
    left = max_model_len - prompt_tokens
    if left < (params.max_tokens or 1):
        raise ParameterError(
            "max_tokens",
            f"the context is {max_model_len} tokens, but the prompt has {prompt_tokens} and "
            f"max_tokens is {params.max_tokens or 1}; shorten one of them.",
        )
    return params.clone(max_tokens=left) if params.max_tokens is None else params


def _resume(message: pb.GenerateRequest) -> Resume | None:
    if not message.HasField("resume"):
        return None
    if message.sampling.n > 1 or message.sampling.use_beam_search:
        raise ParameterError("resume", "resume goes on with one sample; leave n and beams out.")
    given = message.resume
    return Resume(
        output_token_ids=list(given.output_token_ids),
        seed=given.seed if given.HasField("seed") else None,
        sample_index=given.sample_index,
    )


async def add_chunk(
    response: pb.GenerateResponse,
    update: SampleUpdate,
    prompt_logprobs: Iterable[LogprobEntry],
    turns: LoopTurns,
    *,
    with_token_ids: bool,
) -> pb.Chunk:
    """Add what was added to one sample to a message; return its chunk. Many log-probabilities are
    converted in turns of the loop."""
    made = response.chunks.add(
        index=update.index,
        text=update.text,
        token_ids=update.token_ids if with_token_ids else (),
        finish_reason=update.finish_reason or "",
    )
    for entry in update.logprobs or ():
        made.logprobs.add(**_token_logprobs(entry))
        await turns.pause()
    for entry in prompt_logprobs:
        made.prompt_logprobs.add(**_token_logprobs(entry))
        await turns.pause()
    if isinstance(update.stop_reason, str):
        made.stop_string = update.stop_reason
    elif update.stop_reason is not None:
        made.stop_token_id = update.stop_reason
    return made


def _token_logprobs(entry: LogprobEntry) -> dict[str, Any]:
    """Return the fields of a TokenLogprobs."""
    return {
        "token_id": entry.token_id,
        "logprob": entry.logprob,
        "rank": entry.rank,
        "top_ids": entry.top_ids,
        "top_logprobs": entry.top_logprobs,
    }


def load(snapshot: LoadSnapshot, *, ready: bool, draining: bool, leaving: bool = False) -> pb.Load:
    """The load message."""
    return pb.Load(
        running=snapshot.running,
        waiting=snapshot.waiting,
        inflight_tokens=snapshot.inflight_tokens,
        kv_usage=snapshot.kv_usage,
        step_age_seconds=snapshot.step_age_seconds,
        ready=ready,
        draining=draining,
        leaving=leaving,
    )


def prompt_reports(reports: Iterable[PromptReport], dropped: int) -> pb.PromptReports:
    """Reports as a message."""
    return pb.PromptReports(
        reports=(
            pb.PromptReport(
                text_hashes=report.text_hashes,
                kv_blocks=report.kv_blocks,
                kv_hashes=report.kv_hashes,
            )
            for report in reports
        ),
        dropped=dropped,
    )
