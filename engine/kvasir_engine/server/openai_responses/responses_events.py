"""Server-sent events of the Responses API, in OpenAI's order."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir_engine.server.openai import router_contract
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.schema import ResumeBody
from kvasir_engine.server.openai.sse import StreamWriter, shutting_down
from kvasir_engine.server.openai_responses.responses_answer import ResponsesAnswer
from kvasir_engine.text.sample_state import SampleUpdate

_encode = msgspec.json.encode


class ResponsesEventWriter(StreamWriter):
    """Render a ResponsesAnswer as events with numbers.

    A resumed answer's items are made from the beginning. The events that its client has are left
    out: so many that add no text, which come in one order whatever the cuts, and so many units of
    text. Only the first event of an update has the comment with the update's ids
    (router_contract.py).
    """

    def __init__(self, answer: ResponsesAnswer, resume: ResumeBody | None = None) -> None:
        self._answer = answer
        answer.items.tell = self._tell
        self._events: list[bytes] = []
        self._comment = b""
        self._started = False
        self._number = resume.sent_events if resume is not None else 0
        self._skipped_steps = resume.sent_steps if resume is not None else 0
        self._skipped_units = resume.sent_chars if resume is not None else 0

    def events(self, updates: list[SampleUpdate]) -> bytes:
        """The events of one batch, to be sent as one chunk; empty when there is nothing to say."""
        answer = self._answer
        for update in updates:
            self._comment = self._comment_of(update)
            self._start()
            answer.take([update])
        made, self._events = b"".join(self._events), []
        return made

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for kind in ("created", "in_progress"):
                self._tell(kind, None, response=self._answer.response("in_progress"))

    def _comment_of(self, update: SampleUpdate) -> bytes:
        if not self._answer.fleet:
            return b""
        if not self._started:
            run = self._answer.choice.run
            return router_contract.first_comment(update.index, update.token_ids, run)
        return self._comment + router_contract.comment(update.index, update.token_ids)

    def _tell(self, kind: str, units: int | None, **fields: Any) -> None:
        """Add the event of a step, or what of it the client lacks."""
        if units is None:
            if self._skipped_steps:
                self._skipped_steps -= 1
                return
        elif self._skipped_units:
            known = min(self._skipped_units, units)
            self._skipped_units -= known
            if known == units:
                return
            fields["delta"] = fields["delta"][known:]
        self._events.append(self._comment + self._event(kind, fields))
        self._comment = b""

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        name = f"response.{kind}"
        data = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(data))

    def end(self) -> bytes:
        """The last event: response.completed, or response.incomplete."""
        response = self._answer.ended()
        return self._last(response["status"], response)

    def error(self, error: ApiError) -> bytes:
        """The end of a stream that failed: response.failed; a router hears of an engine's death as
        with any answer, and goes on with the stream elsewhere."""
        if self._answer.fleet and error.code == "engine_dead":
            return self._last_comment() + b"data: %s\n\n" % _encode(error.body())
        return self._last("failed", self._answer.failed(error))

    def handover(self) -> bytes:
        """The end of a stream at the drain deadline."""
        if self._answer.fleet:
            return router_contract.handover_event(self._answer.generation, self._answer.usage)
        return self.error(shutting_down())

    def _last(self, kind: str, response: dict[str, Any]) -> bytes:
        self._start()
        before, self._events = b"".join(self._events) + self._comment, []
        return before + self._last_comment() + self._event(kind, {"response": response})

    def _last_comment(self) -> bytes:
        return router_contract.bare_comment(self._answer.usage) if self._answer.fleet else b""
