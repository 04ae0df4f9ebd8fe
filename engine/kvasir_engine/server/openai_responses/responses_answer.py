"""Answers of /v1/responses: a chat's pieces as output items."""

from __future__ import annotations

import time
import uuid
from typing import Any

from kvasir_engine.request import FinishReason, LogprobEntry
from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.openai.answer import Choice
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.chat import ChatAnswer
from kvasir_engine.server.openai_responses.output_items import OutputItems
from kvasir_engine.server.openai_responses.responses_body import ResponsesChatBody
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.sample_state import SampleUpdate

_STATUSES = {FinishReason.LENGTH: "incomplete"}


class ResponsesAnswer(ChatAnswer):
    """OpenAI's response. It has one choice; its items are made the same way whether it is streamed
    or not, and a resumed one's from its beginning."""

    id_prefix = "resp_"

    def __init__(
        self,
        generation: Generation,
        body: ResponsesChatBody,
        *,
        parsing: Parsing | None = None,
        prompt_end: PromptEnd | None = None,
        **options: Any,
    ) -> None:
        super().__init__(generation, body, parsing=parsing, prompt_end=prompt_end, **options)
        if body.resume is None or body.resume.id is None:
            # Not the request's, which a client may choose: a kept response is found by it.
            self.envelope["id"] = self.id_prefix + uuid.uuid4().hex
        self._repeated = body.repeated
        self._waiting: list[LogprobEntry] = []
        """Log-probabilities of tokens whose text is held back."""
        self.items = OutputItems(
            self.envelope["id"], lambda number: self.call_id(self.choice, number), self.tell
        )

    @property
    def choice(self) -> Choice:
        """The only choice."""
        return self.choices[0]

    def tell(self, kind: str, units: int | None, **fields: Any) -> None:
        """Tell of a step of the items; a stream's writer takes this place."""

    def take(self, updates: list[SampleUpdate]) -> None:
        """Make items of what was added."""
        for update in updates:
            ended = update.finish_reason is not None
            pieces = self.pieces(self.choice, update.text, last=ended)
            self._waiting += update.logprobs or ()
            if self.items.take(pieces, self._shown(self._waiting) if self._waiting else []):
                self._waiting = []
            if ended:
                self.items.close(self._end_of_item(update.finish_reason))

    def _shown(self, entries: list[LogprobEntry]) -> list[Any]:
        return list(self.logprob_format.chat(entries)["content"])

    def _end_of_item(self, reason: FinishReason | None) -> str:
        item = self.items.open
        if reason is FinishReason.LENGTH or (item is not None and item.kind is Kind.CALL):
            return "incomplete"
        return "completed"

    def body(self) -> dict[str, Any]:
        """See Answer."""
        return self.ended()

    def ended(self) -> dict[str, Any]:
        """Return the response after the generation has ended."""
        status = _STATUSES.get(self.choice.sample.finish_reason or FinishReason.STOP, "completed")
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self.response(status, incomplete_details=cut, usage=self.response_usage())

    def failed(self, error: ApiError) -> dict[str, Any]:
        """Return the response of a generation that failed."""
        told = {"code": "server_error", "message": error.message}
        return self.response("failed", error=told, usage=self.response_usage())

    def response(self, status: str, **ends: Any) -> dict[str, Any]:
        """Return the response with its items so far; `ends` are fields that are null before the
        end."""
        params = self.generation.runs[0].request.params
        completed = int(time.time()) if status == "completed" else None
        return {
            "id": self.envelope["id"],
            "object": "response",
            "created_at": self.envelope["created"],
            "status": status,
            "completed_at": completed,
            "error": None,
            "incomplete_details": None,
            "model": self.envelope["model"],
            "output": self.items.all(),
            "temperature": params.temperature,
            "top_p": params.top_p,
            **self._repeated,
            "usage": None,
            **ends,
        }

    def response_usage(self) -> dict[str, Any]:
        """Return the tokens so far, in the names of the Responses API."""
        usage = self.usage
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
