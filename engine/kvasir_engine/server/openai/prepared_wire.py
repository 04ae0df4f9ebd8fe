"""PreparedRequest as bytes: from a body worker to the API process that gave it the body."""

from __future__ import annotations

import asyncio
import dataclasses
from array import array
from typing import Any, TypeVar

import msgspec

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.request import EngineRequest
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.openai.preparer import PreparedRequest
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody
from kvasir_engine.text.output_assembler import OutputAssembler
from kvasir_engine.text.parsing.reasoning import PromptEnd

_PAUSE_TOKENS = 32 * 1024
"""Prompt tokens after which decoding lets the streams have their turn."""
_BULKY: dict[str, Any] = {
    "prompt": None,
    "messages": [],
    "documents": None,
    "chat_template_kwargs": None,
    "stop": None,
    "stop_token_ids": None,
    "logit_bias": None,
    "bad_words": None,
    "allowed_token_ids": None,
    "cache_salt": None,
}
"""Fields that the runs hold already, and what takes their place in the body."""
_AnyBody = TypeVar("_AnyBody", bound=CompletionBody | ChatBody)


class _WireRun(msgspec.Struct, array_like=True):
    request: EngineRequest
    """Without its prompt's ids."""
    prompt_ids: bytes
    text: str | None
    first_choice: int
    sent_chars: int
    finish_sent: bool
    cached_tokens: int | None


class _WireRequest(msgspec.Struct, array_like=True):
    body: bytes
    runs: list[bytes]
    answer_id: str | None
    prompt_end: PromptEnd


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_WireRequest).decode
_decode_run = msgspec.msgpack.Decoder(_WireRun).decode


def encode_prepared(prepared: PreparedRequest) -> bytes:
    """Return `prepared` as bytes, without what only the core needs of the body."""
    echo = bool(getattr(prepared.body, "echo", False))
    runs = [_encode(_wire_run(run, echo)) for run in prepared.runs]
    body = _encode(_light(prepared.body))
    return _encode(_WireRequest(body, runs, prepared.answer_id, prepared.prompt_end))


def _wire_run(run: PromptRun, echo: bool) -> _WireRun:
    return _WireRun(
        dataclasses.replace(run.request, prompt_token_ids=[]),
        array("i", run.request.prompt_token_ids).tobytes(),
        run.prompt_text if echo else None,
        run.first_choice,
        run.sent_chars,
        run.finish_sent,
        run.cached_tokens,
    )


def _light(body: _AnyBody) -> _AnyBody:
    changes: dict[str, Any] = {k: v for k, v in _BULKY.items() if k in body.__struct_fields__}
    if body.resume is not None:
        changes["resume"] = msgspec.structs.replace(body.resume, output_token_ids=[])
    return msgspec.structs.replace(body, **changes)


async def decode_prepared(
    content: bytes, kind: type[CompletionBody | ChatBody], tokenizer: Tokenizer
) -> PreparedRequest:
    """Return what `encode_prepared` was given; other tasks have their turn between prompts."""
    wire = _decode_request(content)
    runs: list[PromptRun] = []
    since_pause = 0
    for each in wire.runs:
        runs.append(_run(_decode_run(each), tokenizer))
        since_pause += runs[-1].request.num_prompt_tokens
        if since_pause >= _PAUSE_TOKENS:
            since_pause = 0
            await asyncio.sleep(0)
    body = msgspec.msgpack.decode(wire.body, type=kind)
    return PreparedRequest(body, runs, wire.answer_id, wire.prompt_end)


def _run(wire: _WireRun, tokenizer: Tokenizer) -> PromptRun:
    request = wire.request
    request.prompt_token_ids = array("i", wire.prompt_ids)
    return PromptRun(
        request,
        OutputAssembler(request, tokenizer, wire.text),
        wire.text,
        wire.first_choice,
        sent_chars=wire.sent_chars,
        finish_sent=wire.finish_sent,
        cached_tokens=wire.cached_tokens,
    )
