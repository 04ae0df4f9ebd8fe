"""The OpenAI routes and the tokenizer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvasir_engine.sampling_params import ParameterError, check_token_ids
from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.http.body import ClientGoneError, parse_body, read_body
from kvasir_engine.server.http.responder import GenerationResponse
from kvasir_engine.server.openai.answer import Answer
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.chat import ChatAnswer
from kvasir_engine.server.openai.completions import CompletionAnswer
from kvasir_engine.server.openai.intake import Intake, TokenPrompt
from kvasir_engine.server.openai.logprob_format import LogprobFormat
from kvasir_engine.server.openai.reporting import report_runs
from kvasir_engine.server.openai.sampling import chat_params, completion_params
from kvasir_engine.server.openai.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    SamplingBody,
    TokenizeBody,
)
from kvasir_engine.server.server_state import ServerState

CLIENT_CLOSED = 499
"""nginx's status for a client that left before its answer: nobody reads it but the metrics."""


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


class ApiRoutes:
    """Handlers over one ServerState."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def completions(self, request: Request) -> Response:
        """Complete a prompt, or each of several.

        OpenAI's fields, then vLLM's. With `stream` the answer is server-sent events that end with
        `data: [DONE]`; an error after the first one comes as an event that holds the error object.
        Unknown fields are ignored and logged once; known ones that are not supported are a 400.
        """
        body = await self.read(request, CompletionBody)
        intake = self._state.intake(body.model)
        params = completion_params(body, self._state.model.defaults)
        special = True if body.add_special_tokens is None else body.add_special_tokens
        prompts = await intake.prompts(body.prompt, add_special_tokens=special)
        return self.respond(CompletionAnswer, request, body, intake, prompts, params)

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation through the model's chat template.

        As /v1/completions otherwise.
        """
        body = await self.read(request, ChatBody)
        intake = self._state.intake(body.model)
        params = chat_params(body, self._state.model.defaults)
        prompt = await self._chat_prompt(intake, body)
        return self.respond(ChatAnswer, request, body, intake, [prompt], params)

    def respond(
        self,
        kind: Callable[..., Answer],
        request: Request,
        body: Any,
        intake: Intake,
        prompts: list[TokenPrompt],
        params: Any,
    ) -> GenerationResponse:
        """The answer of `kind` to `body`, made while it is sent."""
        state, scope_state = self._state, request.scope["state"]
        request_id: str = scope_state["request_id"]
        echo = bool(getattr(body, "echo", False))
        runs = intake.runs(prompts, params, body, request_id, echo=echo)
        if state.reporter is not None:
            report_runs(state.reporter, intake.maker.chat_template, body, runs)
        answer = kind(
            Generation(state.client, state.metrics, runs),
            body,
            request_id=request_id,
            model=body.model or state.model.name,
            logprob_format=LogprobFormat(
                state.model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)
            ),
            fleet=scope_state["fleet"],
        )
        return GenerationResponse(answer, state.lifecycle)

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a prompt, or of a conversation through the chat template."""
        body = await self.read(request, TokenizeBody)
        intake = self._state.intake(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("Give either prompt or messages.", "prompt")
        if body.prompt is not None:
            special = True if body.add_special_tokens is None else body.add_special_tokens
            ids = await intake.encode(body.prompt, add_special_tokens=special, param="prompt")
        else:
            ids = (await self._chat_prompt(intake, body)).token_ids
        made: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": intake.max_model_len,
            "tokens": ids,
        }
        if body.return_token_strs:
            made["token_strs"] = [self._state.model.tokenizer.token_text(i) for i in ids]
        return json_response(made)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids, special tokens included."""
        body = await self.read(request, DetokenizeBody)
        intake = self._state.intake(body.model)
        try:
            [prompt] = await intake.prompts([body.tokens], add_special_tokens=False)
            check_token_ids("tokens", prompt.token_ids, intake.maker.vocab_size)
        except ApiError as error:
            raise invalid(error.message, "tokens", error.code) from None
        except ParameterError as error:
            raise invalid(str(error), error.param) from None
        text = self._state.model.tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
        return json_response({"prompt": text})

    async def models(self, request: Request) -> Response:
        """List the served names, once the model can serve."""
        data = [self._card(name) for name in self._state.model.names]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """Return one served name's card."""
        name: str = request.path_params["name"]
        self._state.check_model(name)
        return json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        info = self._state.loaded_info()
        return {
            "id": name,
            "object": "model",
            "created": self._state.settings.created,
            "owned_by": "kvasir",
            "root": self._state.model.root,
            "parent": None,
            "max_model_len": info.max_model_len,
            # What a stream must have in common with where it moves to
            "revision": self._state.settings.revision,
            "dtype": info.dtype,
            "quantization": info.quantization,
        }

    async def _chat_prompt(self, intake: Intake, body: ChatBody | TokenizeBody) -> TokenPrompt:
        text = await intake.chat_text(body)
        ids = await intake.encode(
            text, add_special_tokens=bool(body.add_special_tokens), param="messages"
        )
        return TokenPrompt(ids, text)

    async def read(self, request: Request, kind: type[Any]) -> Any:
        """The body of `request` as a `kind`. Raises ApiError."""
        limit = self._state.settings.max_body_bytes
        try:
            raw = await read_body(request.scope, request.receive, limit)
        except ClientGoneError as error:
            raise ApiError(CLIENT_CLOSED, "The client closed the connection.") from error
        return parse_body(raw, kind)


__all__ = ["ApiRoutes", "SamplingBody", "json_response"]
