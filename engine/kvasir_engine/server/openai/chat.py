"""Answers of /v1/chat/completions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from kvasir_engine.request import FinishReason
from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.generation.reasoning_tokens import ReasoningTokens, closing_token
from kvasir_engine.server.openai.answer import Answer, Choice, finish_fields
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.server.openai.tools.tool_request import wants_calls
from kvasir_engine.text.parsing.message_parser import MessageParser, Parsing
from kvasir_engine.text.parsing.pieces import JoinedPieces, Kind, Piece
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.parsing.tool_machine import ToolSet
from kvasir_engine.text.sample_state import SampleUpdate

_SHORT_ID_CHARS = 9


class ChatAnswer(Answer):
    """OpenAI's chat completion, with vLLM's additions where they were asked for.

    Where the model has a format of reasoning, or tools were given, each choice has a parser; its
    pieces are the message, at once or as deltas.
    """

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        generation: Generation,
        body: ChatBody,
        *,
        parsing: Parsing | None = None,
        prompt_end: PromptEnd | None = None,
        **options: Any,
    ) -> None:
        super().__init__(generation, body, **options)
        self._parsers: dict[int, MessageParser] = {}
        self._parsed: dict[int, JoinedPieces] = {}
        self._reasoning: dict[int, ReasoningTokens] = {}
        if parsing is not None:
            self._short_ids = parsing.tools is not None and parsing.tools.short_ids
            prompt_end = prompt_end or PromptEnd()
            for choice in self.choices.values():
                self._parse(choice, body, parsing, prompt_end)
            closer = closing_token(parsing, self.logprob_format.tokenizer, prompt_end)
            self._reasoning = {index: ReasoningTokens(closer) for index in self._parsers}

    def _parse(
        self, choice: Choice, body: ChatBody, parsing: Parsing, prompt_end: PromptEnd
    ) -> None:
        """Give a choice its parser, which skips what the client of a resumed answer has."""
        calls, run = wants_calls(body), choice.run
        parser = parsing.parser(
            ToolSet.of(body.tools or []) if calls else None,
            prompt_end,
            one_call=body.parallel_tool_calls is False,
            with_reasoning=body.include_reasoning is not False,
            skip=run.sent_chars,
        )
        if parser is not None:
            run.sent_chars = 0  # the sample is to give all of its text
            choice.sample.mark(parsing.signs(with_tools=calls))
            self._parsers[choice.index] = parser

    @property
    def usage(self) -> dict[str, Any]:
        """See Answer; with the tokens of reasoning, those that are not shown included."""
        counted = sum(
            each.count(self.choices[index].sample.token_ids, self._units(self.choices[index]))
            for index, each in self._reasoning.items()
        )
        return {**super().usage, "completion_tokens_details": {"reasoning_tokens": counted}}

    def _units(self, choice: Choice) -> dict[Kind, int]:
        """Characters of a choice by kind."""
        parser, run = self._parsers[choice.index], choice.run
        if run.finish_sent and run.resumed is not None and not parser.units:
            parser.push(run.resumed.text, last=True)  # the client has all of it: it was not read
        return parser.units

    def opening_choice(self, choice: Choice) -> dict[str, Any] | None:
        """The role; a resumed answer's client has it already."""
        if self.opened:
            return None
        content = None if choice.index in self._parsers else ""
        delta = {"role": "assistant", "content": content}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def plain_choice(self, choice: Choice) -> tuple[bytes, bytes]:
        """See Answer."""
        head = b'{"index":%d,"delta":{"content":' % choice.index
        return head, b'},"logprobs":null,"finish_reason":null}'

    def delta(self, choice: Choice, update: SampleUpdate) -> dict[str, Any]:
        """See Answer."""
        parser = self._parsers.get(choice.index)
        if parser is None:
            return {"content": update.text}
        first = parser.calls
        pieces = parser.push(update.text, last=update.finish_reason is not None)
        return self._message(choice, pieces, first)

    def take(self, updates: list[SampleUpdate]) -> None:
        """Parse what was added: a long answer's text at once would hold the event loop."""
        for update in updates:
            if (parser := self._parsers.get(update.index)) is not None:
                pieces = parser.push(update.text, last=update.finish_reason is not None)
                self._parsed.setdefault(update.index, JoinedPieces()).add(pieces)

    def whole(self, choice: Choice) -> Iterable[Piece]:
        """Return the pieces of a choice that was not streamed."""
        parsed = self._parsed.get(choice.index)
        if parsed is not None:
            return parsed
        return self.pieces(choice, choice.sample.text, last=True)

    def pieces(self, choice: Choice, text: str, *, last: bool) -> list[Piece]:
        """Return the pieces that became certain with `text`."""
        parser = self._parsers.get(choice.index)
        if parser is None:
            return [Piece(Kind.CONTENT, text)] if text else []
        return parser.push(text, last=last)

    def finished_with_calls(self, choice: Choice) -> bool:
        """Return whether the choice so far has called, and no call is cut off."""
        parser = self._parsers.get(choice.index)
        return parser is not None and parser.finished_with_calls

    def chunk_choice(
        self, choice: Choice, update: SampleUpdate, delta: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """See Answer."""
        made: dict[str, Any] = {
            "index": choice.index,
            "delta": self.delta(choice, update) if delta is None else delta,
            "logprobs": None
            if update.logprobs is None
            else self.logprob_format.chat(update.logprobs),
        }
        if self.return_token_ids:
            made["token_ids"] = update.token_ids
        return {**made, **self._finish(choice, update.finish_reason, update.stop_reason)}

    def body(self) -> dict[str, Any]:
        """See Answer."""
        run = self.generation.runs[0]
        made = {
            **self.envelope,
            "choices": [self._choice(choice) for choice in self.choices.values()],
            "usage": self.usage,
        }
        if run.request.params.prompt_logprobs is not None:
            made["prompt_logprobs"] = self.logprob_format.prompt(run.assembler.prompt_logprobs)
        if self.return_token_ids:
            made["prompt_token_ids"] = list(run.request.prompt_token_ids)
        return made

    def _choice(self, choice: Choice) -> dict[str, Any]:
        sample = choice.sample
        made: dict[str, Any] = {
            "index": choice.index,
            "message": {"role": "assistant", **self._whole(choice), "refusal": None},
            "logprobs": None
            if sample.logprobs is None
            else self.logprob_format.chat(sample.logprobs),
        }
        if self.return_token_ids:
            made["token_ids"] = sample.token_ids[choice.run.num_resumed_tokens :]
        return {**made, **self._finish(choice, sample.finish_reason, sample.stop_reason)}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        """The fields of a unary answer's message."""
        if choice.index not in self._parsers:
            return {"content": choice.sample.text[choice.run.sent_chars :]}
        made = self._message(choice, self.whole(choice), 0)
        for call in made.get("tool_calls", ()):
            del call["index"]
        return {"content": None, **made}

    def _finish(
        self, choice: Choice, reason: FinishReason | None, stop_reason: int | str | None
    ) -> dict[str, Any]:
        made = finish_fields(reason, stop_reason)
        if reason is FinishReason.STOP and self.finished_with_calls(choice):
            made["finish_reason"] = "tool_calls"
        return made

    def _message(self, choice: Choice, pieces: Iterable[Piece], calls: int) -> dict[str, Any]:
        """Pieces as fields of a message or a delta, after `calls` calls were begun."""
        texts = {Kind.CONTENT: "", Kind.REASONING: ""}
        made: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            if piece.kind in texts:
                texts[piece.kind] += piece.text
            elif piece.kind is Kind.CALL:
                made[calls] = self._call(choice, calls, piece.text)
                calls += 1
            elif piece.kind is Kind.ARGUMENTS:
                call = made.setdefault(calls - 1, {"index": calls - 1, "function": {}})
                function = call["function"]
                function["arguments"] = function.get("arguments", "") + piece.text
        fields: dict[str, Any] = {}
        if texts[Kind.REASONING]:
            # The first is DeepSeek's name for it, the second OpenRouter's and vLLM's.
            fields["reasoning_content"] = fields["reasoning"] = texts[Kind.REASONING]
        if texts[Kind.CONTENT]:
            fields["content"] = texts[Kind.CONTENT]
        if made:
            fields["tool_calls"] = list(made.values())
        return fields

    def _call(self, choice: Choice, number: int, name: str) -> dict[str, Any]:
        """The beginning of a call."""
        return {
            "index": number,
            "id": self.call_id(choice, number),
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }

    def call_id(self, choice: Choice, number: int) -> str:
        """Return the id of a choice's call; it is the same in a resumed answer."""
        place = f"{self.envelope['id']} {choice.index} {number}"
        digest = hashlib.blake2b(place.encode(), digest_size=12).hexdigest()
        return digest[:_SHORT_ID_CHARS] if self._short_ids else f"call_{digest}"
