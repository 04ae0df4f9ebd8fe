"""The OpenAI routes and the tokenizer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvasir_engine.server.anthropic.messages_answer import MessagesAnswer
from kvasir_engine.server.anthropic.messages_events import MessagesEventWriter
from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.http.body_reader import BodyReader
from kvasir_engine.server.http.responder import GenerationResponse
from kvasir_engine.server.oip.infer import InferAnswer
from kvasir_engine.server.openai.answer import Answer
from kvasir_engine.server.openai.chat import ChatAnswer
from kvasir_engine.server.openai.completions import CompletionAnswer
from kvasir_engine.server.openai.logprob_format import LogprobFormat
from kvasir_engine.server.openai.preparer import PreparedRequest
from kvasir_engine.server.openai.sse import EventWriter, StreamWriter
from kvasir_engine.server.openai.wide_sse import WideEventWriter
from kvasir_engine.server.openai_responses.responses_answer import ResponsesAnswer
from kvasir_engine.server.openai_responses.responses_events import ResponsesEventWriter
from kvasir_engine.server.server_state import ServerState

_ANSWERS: dict[str, Callable[..., Answer]] = {
    "completions": CompletionAnswer,
    "chat": ChatAnswer,
    "messages": MessagesAnswer,
    "responses": ResponsesAnswer,
    "infer": InferAnswer,
}


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


class ApiRoutes:
    """Handlers over one ServerState."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._bodies = BodyReader(state)

    async def completions(self, request: Request) -> Response:
        """Complete a prompt, or each of several.

        OpenAI's fields, then vLLM's. With `stream` the answer is server-sent events that end with
        `data: [DONE]`; an error after the first one comes as an event that holds the error object.
        Unknown fields are ignored and logged once; known ones that are not supported are a 400.
        """
        return await self.generate(request, "completions")

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation through the model's chat template.

        As /v1/completions otherwise.
        """
        return await self.generate(request, "chat")

    async def messages(self, request: Request) -> Response:
        """Answer a conversation by Anthropic's Messages API, as a chat is answered.

        With `stream` the events are Anthropic's, from message_start to message_stop.
        """
        return await self.generate(request, "messages")

    async def responses(self, request: Request) -> Response:
        """Answer by OpenAI's Responses API, as a chat is answered.

        Responses are kept by a router, not here. With `stream` the events are OpenAI's, from
        response.created to response.completed.
        """
        return await self.generate(request, "responses")

    async def count_tokens(self, request: Request) -> Response:
        """Return how many tokens the prompt of a request to /v1/messages has."""
        content = await self._bodies.document(request, "count_tokens")
        return Response(content, media_type="application/json")

    async def generate(
        self, request: Request, route: str, model: str | None = None
    ) -> GenerationResponse:
        """Return the answer of a generating route, made while it is sent."""
        prepared = await self._bodies.prepared(request, route, model)
        state, scope_state = self._state, request.scope["state"]
        state.request_log.write(prepared.runs)
        answer = _ANSWERS[route](
            Generation(state.client, state.metrics, prepared.runs, state.turns),
            prepared.body,
            request_id=scope_state["request_id"],
            model=prepared.body.model or state.model.name,
            logprob_format=LogprobFormat(
                state.model.tokenizer,
                as_ids=bool(prepared.body.return_tokens_as_token_ids),
                in_turns=not prepared.body.stream,
            ),
            fleet=scope_state["fleet"],
            **self._more(route, prepared),
        )
        writer: StreamWriter
        if isinstance(answer, MessagesAnswer):
            writer = MessagesEventWriter(answer, prepared.body.resume)
        elif isinstance(answer, ResponsesAnswer):
            writer = ResponsesEventWriter(answer, prepared.body.resume)
        else:
            writer = WideEventWriter(answer) if answer.is_wide else EventWriter(answer)
        return GenerationResponse(answer, state.lifecycle, writer, state.turns)

    def _more(self, route: str, prepared: PreparedRequest) -> dict[str, Any]:
        """Return the arguments that only one route's answer takes."""
        if route == "infer":
            return {"infer_id": prepared.answer_id}
        if route in ("chat", "messages", "responses"):
            return {"parsing": self._state.model.parsing, "prompt_end": prepared.prompt_end}
        return {}

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a prompt, or of a conversation through the chat template."""
        content = await self._bodies.document(request, "tokenize")
        return Response(content, media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids, special tokens included."""
        content = await self._bodies.document(request, "detokenize")
        return Response(content, media_type="application/json")

    async def models(self, request: Request) -> Response:
        """List the served names and the loaded adapters, once the model can serve."""
        data = [self._card(name) for name in self._state.model.names]
        data += [self._adapter_card(name) for name in self._state.adapters.names]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """Return one served name's card."""
        name: str = request.path_params["name"]
        self._state.check_model(name)
        is_adapter = name in self._state.adapters
        return json_response(self._adapter_card(name) if is_adapter else self._card(name))

    def _adapter_card(self, name: str) -> dict[str, Any]:
        state = self._state
        own = {"root": state.adapters.path(name), "parent": state.model.name}
        return {**self._card(name), **own}

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
            "kv_cache_dtype": info.kv_cache_dtype,
        }
