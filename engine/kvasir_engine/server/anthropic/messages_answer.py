"""Answers of /v1/messages: a chat's pieces as content blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kvasir_engine.request import FinishReason
from kvasir_engine.server.openai.answer import Choice
from kvasir_engine.server.openai.chat import ChatAnswer
from kvasir_engine.text.parsing.pieces import Kind, Piece

TEXT_FIELDS = {Kind.CONTENT: "text", Kind.REASONING: "thinking"}
"""Fields of the blocks, and their types, whose text grows."""


class MessagesAnswer(ChatAnswer):
    """Anthropic's message. It has one choice."""

    id_prefix = "msg_"

    @property
    def choice(self) -> Choice:
        """The only choice."""
        return self.choices[0]

    def message(self, content: list[dict[str, Any]], end: dict[str, Any]) -> dict[str, Any]:
        """Return the message with its content and the fields of its end."""
        return {
            "id": self.envelope["id"],
            "type": "message",
            "role": "assistant",
            "model": self.envelope["model"],
            "content": content,
            **end,
            "usage": self.message_usage(),
        }

    def message_usage(self) -> dict[str, int]:
        """Return the tokens so far; those that were cached are not among `input_tokens`."""
        usage = self.usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }

    def end_fields(self, reason: FinishReason | None, stop: int | str | None) -> dict[str, Any]:
        """Return `stop_reason` and `stop_sequence`."""
        if reason is None:
            return {"stop_reason": None, "stop_sequence": None}
        if reason is FinishReason.LENGTH:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if reason is FinishReason.STOP and self.finished_with_calls(self.choice):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def body(self) -> dict[str, Any]:
        """See Answer."""
        sample = self.choice.sample
        content = self._blocks(self.whole(self.choice))
        return self.message(content, self.end_fields(sample.finish_reason, sample.stop_reason))

    def _blocks(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        arguments: list[str] = []
        calls = 0
        for piece in pieces:
            if piece.kind is Kind.CALL:
                made.append(self.new_block(piece, calls))
                arguments.append("")
                calls += 1
            elif piece.kind is Kind.ARGUMENTS:
                arguments[-1] += piece.text
            elif piece.kind in TEXT_FIELDS:
                field = TEXT_FIELDS[piece.kind]
                if not made or made[-1]["type"] != field:
                    made.append(self.new_block(piece, calls))
                made[-1][field] += piece.text
        called = (block for block in made if block["type"] == "tool_use")
        for block, text in zip(called, arguments, strict=True):
            block["input"] = _input(text)
        return made

    def new_block(self, piece: Piece, calls: int) -> dict[str, Any]:
        """Return the empty block that `piece` begins, after `calls` calls."""
        if piece.kind is Kind.CALL:
            call_id = self.call_id(self.choice, calls)
            return {"type": "tool_use", "id": call_id, "name": piece.text, "input": {}}
        if piece.kind is Kind.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}


def _input(arguments: str) -> dict[str, Any]:
    """Return a call's arguments; none where the answer was cut within them."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
