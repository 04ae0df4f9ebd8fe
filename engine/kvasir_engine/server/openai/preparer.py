"""From a body's bytes to what the core takes: parsed, checked, rendered, tokenised, hashed.

The same in an API process, for small bodies, and in a body worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from kvasir_engine.sampling_params import ParameterError, check_token_ids
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.body_parser import parse_body
from kvasir_engine.server.openai.intake import Intake, TokenPrompt
from kvasir_engine.server.openai.sampling import chat_params, completion_params
from kvasir_engine.server.openai.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from kvasir_engine.server.openai.tools.answer_form import answer_form
from kvasir_engine.server.openai.tools.tool_request import check_tool_list, check_tools
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import PromptEnd

_PIECE_TOKENS = 4096
"""Tokens whose texts are made at once; the streams may have their turn between two pieces."""


@dataclass(slots=True)
class PreparedRequest:
    """Request that can go to the core. Of `body` only what the answer looks like is needed."""

    body: CompletionBody | ChatBody
    runs: list[PromptRun]
    answer_id: str | None = None
    """The id that an OIP caller gave."""
    prompt_end: PromptEnd = PromptEnd()
    """End of a chat's prompt, which leads the answer in."""


class Preparer:
    """Prepare the requests for the models that `intake` knows by name (None = the only one)."""

    def __init__(
        self,
        intake: Callable[[str | None], Intake],
        defaults: dict[str, Any],
        parsing: Parsing | None = None,
    ) -> None:
        self._intake = intake
        self._defaults = defaults
        self._parsing = parsing

    async def completion(self, raw: bytes, request_id: str) -> PreparedRequest:
        """Prepare POST /v1/completions. Raises ApiError."""
        return await self.completion_of(parse_body(raw, CompletionBody), request_id)

    async def completion_of(self, body: CompletionBody, request_id: str) -> PreparedRequest:
        """Prepare a completion from its parsed body. Raises ApiError."""
        intake = self._intake(body.model)
        params = completion_params(body, self._defaults)
        special = True if body.add_special_tokens is None else body.add_special_tokens
        if not intake.maker.tokenizer.knows_text:
            _check_ids_only(intake, body)
        prompts = await intake.prompts(body.prompt, add_special_tokens=special)
        runs = await intake.runs(prompts, params, body, request_id, echo=bool(body.echo))
        return PreparedRequest(body, runs)

    async def chat(self, raw: bytes, request_id: str) -> PreparedRequest:
        """Prepare POST /v1/chat/completions. Raises ApiError."""
        return await self.chat_of(parse_body(raw, ChatBody), request_id)

    async def chat_of(self, body: ChatBody, request_id: str) -> PreparedRequest:
        """Prepare a chat from its parsed body. Raises ApiError."""
        intake = self._intake(body.model)
        params = chat_params(body, self._defaults)
        check_tools(body, intake.maker.chat_template, self._parsing)
        prompt = await _chat_prompt(intake, body)
        continued = bool(body.continue_final_message)
        end = PromptEnd.of_chat(prompt.text or "", body.messages, continued=continued)
        form = answer_form(body, params, self._parsing, intake.maker.tokenizer, end)
        runs = await intake.runs([prompt], form.params, body, request_id)
        for run in runs:
            run.request.thinking = form.thinking
            run.request.may_be_free = form.may_be_free
        if params.thinking_token_budget is not None:
            _limit_thinking(intake, end, runs)
        return PreparedRequest(body, runs, prompt_end=end)

    async def chat_prompt(self, body: ChatBody) -> TokenPrompt:
        """Return the prompt of a chat that is not to be answered. Raises ApiError."""
        intake = self._intake(body.model)
        check_tools(body, intake.maker.chat_template, self._parsing)
        return await _chat_prompt(intake, body)

    def leaves_room(self, model: str | None, prompt_tokens: int, max_tokens: int | None) -> bool:
        """Return whether the context has room for an answer to such a prompt, of `max_tokens` if
        they are given. Raises ApiError."""
        return prompt_tokens + (max_tokens or 1) <= self._intake(model).max_model_len

    async def tokenize(self, raw: bytes) -> bytes:
        """Return the answer to POST /tokenize. Raises ApiError."""
        body = parse_body(raw, TokenizeBody)
        intake = self._intake(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("Give either prompt or messages.", "prompt")
        if body.prompt is not None:
            special = True if body.add_special_tokens is None else body.add_special_tokens
            ids = await intake.encode(body.prompt, add_special_tokens=special, param="prompt")
        else:
            check_tool_list(body, intake.maker.chat_template)
            ids = (await _chat_prompt(intake, body)).token_ids
        made: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": intake.max_model_len,
            "tokens": ids,
        }
        if body.return_token_strs:
            made["token_strs"] = await _token_texts(intake, ids)
        return msgspec.json.encode(made)

    async def detokenize(self, raw: bytes) -> bytes:
        """Return the answer to POST /detokenize. Raises ApiError."""
        body = parse_body(raw, DetokenizeBody)
        intake = self._intake(body.model)
        intake.check_text("tokens")
        try:
            [prompt] = await intake.prompts([body.tokens], add_special_tokens=False)
            check_token_ids("tokens", prompt.token_ids, intake.maker.vocab_size)
        except ApiError as error:
            raise invalid(error.message, "tokens", error.code) from None
        except ParameterError as error:
            raise invalid(str(error), error.param) from None
        text = await asyncio.to_thread(
            intake.maker.tokenizer.decode, prompt.token_ids, skip_special_tokens=False
        )
        await intake.turns.enter()
        return msgspec.json.encode({"prompt": text})


def _limit_thinking(intake: Intake, end: PromptEnd, runs: list[PromptRun]) -> None:
    try:
        for run in runs:
            run.request.thinking = intake.maker.limited_thinking(run.request.params, end)
    except ParameterError as error:
        raise invalid(str(error), error.param) from error


def _check_ids_only(intake: Intake, body: CompletionBody) -> None:
    """Refuse what asks for text, and have the answer hold ids."""
    if body.echo:
        intake.check_text("echo")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(body, name) is not None and not body.return_tokens_as_token_ids:
            raise invalid(
                f"{name} name tokens by their text, and the engine was started with "
                "--skip-tokenizer-init; set return_tokens_as_token_ids true.",
                name,
                "no_tokenizer",
            )
    body.return_token_ids = True


async def _token_texts(intake: Intake, ids: list[int]) -> list[str]:
    texts: list[str] = []
    for at in range(0, len(ids), _PIECE_TOKENS):
        await intake.turns.pause()
        texts += map(intake.maker.tokenizer.token_text, ids[at : at + _PIECE_TOKENS])
    return texts


async def _chat_prompt(intake: Intake, body: ChatBody | TokenizeBody) -> TokenPrompt:
    text = await intake.chat_text(body)
    ids = await intake.encode(
        text, add_special_tokens=bool(body.add_special_tokens), param="messages"
    )
    return TokenPrompt(ids, text)
