"""Server-sent events of the Messages API, in Anthropic's order."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir_engine.server.anthropic.messages_answer import TEXT_FIELDS, MessagesAnswer
from kvasir_engine.server.anthropic.messages_error import messages_error
from kvasir_engine.server.openai import router_contract
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.schema import ResumeBody
from kvasir_engine.server.openai.sse import StreamWriter, shutting_down
from kvasir_engine.text.parsing.pieces import Kind, Piece
from kvasir_engine.text.sample_state import SampleUpdate

_encode = msgspec.json.encode


class MessagesEventWriter(StreamWriter):
    """Render a MessagesAnswer as events: of each block its start, deltas and stop.

    A block is stopped when the next one starts, or at the answer's end. Only the first event of an
    update has the comment with the update's ids (router_contract.py). A resumed answer's events are
    made from the beginning. Those that its client has are left out: so many that add no text, which
    come in one order whatever the cuts, and so many characters of text.
    """

    def __init__(self, answer: MessagesAnswer, resume: ResumeBody | None = None) -> None:
        self._answer = answer
        self._events: list[bytes] = []
        self._comment = b""
        self._started = False
        self._blocks = 0
        self._calls = 0
        self._open: str | None = None
        """Type of the block that is open."""
        self._skipped_steps = resume.sent_steps if resume is not None else 0
        self._skipped_chars = resume.sent_chars if resume is not None else 0

    def events(self, updates: list[SampleUpdate]) -> bytes:
        """The events of one batch, to be sent as one chunk; empty when there is nothing to say."""
        for update in updates:
            self._update(update)
        made, self._events = b"".join(self._events), []
        return made

    def _update(self, update: SampleUpdate) -> None:
        answer = self._answer
        self._comment = self._comment_of(update)
        if not self._started:
            self._started = True
            message = answer.message([], answer.end_fields(None, None))
            # What came with it depends on the cuts between updates, and nothing else does.
            message["usage"]["output_tokens"] = 0
            self._add("message_start", message=message)
        ended = update.finish_reason is not None
        for piece in answer.pieces(answer.choice, update.text, last=ended):
            self._piece(piece)
        if ended:
            self._stop_block()
            delta = answer.end_fields(update.finish_reason, update.stop_reason)
            self._add("message_delta", delta=delta, usage=answer.message_usage())

    def _comment_of(self, update: SampleUpdate) -> bytes:
        if not self._answer.fleet:
            return b""
        if not self._started:
            run = self._answer.choice.run
            return router_contract.first_comment(update.index, update.token_ids, run)
        return self._comment + router_contract.comment(update.index, update.token_ids)

    def _piece(self, piece: Piece) -> None:
        if piece.kind is Kind.CALL:
            self._start_block(piece, "tool_use")
            self._calls += 1
        elif piece.kind is Kind.ARGUMENTS:
            self._delta("input_json_delta", "partial_json", piece.text)
        elif piece.kind in TEXT_FIELDS:
            field = TEXT_FIELDS[piece.kind]
            if self._open != field:
                self._start_block(piece, field)
            self._delta(f"{field}_delta", field, piece.text)

    def _start_block(self, piece: Piece, kind: str) -> None:
        self._stop_block()
        block = self._answer.new_block(piece, self._calls)
        self._add("content_block_start", index=self._blocks, content_block=block)
        if self._blocks == 0:
            self._add("ping")
        self._blocks += 1
        self._open = kind

    def _delta(self, kind: str, field: str, text: str) -> None:
        known = min(self._skipped_chars, len(text))
        self._skipped_chars -= known
        if known < len(text):
            delta = {"type": kind, field: text[known:]}
            self._write("content_block_delta", index=self._blocks - 1, delta=delta)

    def _stop_block(self) -> None:
        if self._open is not None:
            self._add("content_block_stop", index=self._blocks - 1)
            self._open = None

    def _add(self, name: str, **fields: Any) -> None:
        """Write an event that adds no text, unless the client has it."""
        if self._skipped_steps:
            self._skipped_steps -= 1
        else:
            self._write(name, **fields)

    def _write(self, name: str, **fields: Any) -> None:
        self._events.append(self._comment + _event(name, {"type": name, **fields}))
        self._comment = b""

    def end(self) -> bytes:
        """The last event."""
        return self._last_comment() + _event("message_stop", {"type": "message_stop"})

    def error(self, error: ApiError) -> bytes:
        """An error after the head was sent: Anthropic's client raises it. A router hears of an
        engine's death as with any answer, and goes on with the stream elsewhere."""
        if self._answer.fleet and error.code == "engine_dead":
            return self._last_comment() + b"data: %s\n\n" % _encode(error.body())
        return self._last_comment() + _event("error", messages_error(error))

    def handover(self) -> bytes:
        """The end of a stream at the drain deadline."""
        if self._answer.fleet:
            return router_contract.handover_event(self._answer.generation, self._answer.usage)
        return self.error(shutting_down())

    def _last_comment(self) -> bytes:
        return router_contract.bare_comment(self._answer.usage) if self._answer.fleet else b""


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(data))
