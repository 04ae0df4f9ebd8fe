"""Server-sent events, written by hand where they are many."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from kvasir_engine.server.long_json import encode_in_turns
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai import router_contract
from kvasir_engine.server.openai.answer import Answer, Choice
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.text.sample_state import SampleUpdate

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode
_TEXT_ALONE = {"content"}


class StreamWriter:
    """Base of the writers of one answer's events."""

    opens_long: bool = False
    """True when `openings` is to be sent before each batch's events."""

    is_wide: bool = False
    """True when `wide_events` is to be sent instead of `events`."""

    def openings(
        self, updates: list[SampleUpdate], turns: LoopTurns
    ) -> AsyncGenerator[bytes, None]:
        """Yield parts of the events that come before a choice's first one, made in turns of the
        loop."""
        raise NotImplementedError

    def events(self, updates: list[SampleUpdate]) -> bytes:
        """The events of one batch, to be sent as one chunk; empty when there is nothing to say."""
        raise NotImplementedError

    def wide_events(
        self, updates: list[SampleUpdate], turns: LoopTurns
    ) -> AsyncGenerator[bytes, None]:
        """Yield parts of the events of one batch, made in turns of the loop."""
        raise NotImplementedError

    def end(self) -> bytes:
        """The end of a whole stream."""
        raise NotImplementedError

    def error(self, error: ApiError) -> bytes:
        """The end of a stream that failed."""
        raise NotImplementedError

    def handover(self) -> bytes:
        """The end of a stream at the drain deadline."""
        raise NotImplementedError


class EventWriter(StreamWriter):
    """Render an Answer as SSE: one event an update.

    An event that only adds text, by far the most common, is joined from parts rendered once a
    choice; only its text is encoded.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._fleet = answer.fleet
        self.opens_long = answer.opens_long
        self._plain_allowed = not (
            answer.shows_logprobs or answer.return_token_ids or answer.usage_in_each
        )
        envelope = _encode({**answer.envelope, "choices": []})
        self._open = b"data: " + envelope.removesuffix(b"]}")
        self._close = b'],"usage":null}\n\n' if answer.include_usage else b"]}\n\n"
        self._plain_tail = b""
        for choice in answer.choices.values():
            head, tail = answer.plain_choice(choice)
            choice.head = self._open + head
            self._plain_tail = tail + self._close

    def events(self, updates: list[SampleUpdate]) -> bytes:
        """The events of one batch, to be sent as one chunk; empty when there is nothing to say."""
        if len(updates) == 1:
            return self._event(updates[0])
        return b"".join([self._event(update) for update in updates])

    async def openings(
        self, updates: list[SampleUpdate], turns: LoopTurns
    ) -> AsyncGenerator[bytes, None]:
        """See StreamWriter."""
        for update in updates:
            choice = self._answer.choices[update.index]
            if choice.started or not (update.token_ids or update.text or update.finish_reason):
                continue
            if (chunk := self._opening_chunk(choice)) is not None:
                choice.started = True
                yield self._opening_comment(choice) + b"data: "
                for part in await encode_in_turns(chunk, turns):
                    yield part
                yield b"\n\n"

    def _event(self, update: SampleUpdate) -> bytes:
        choice = self._answer.choices[update.index]
        if not (update.token_ids or update.text or update.finish_reason):
            return b""
        delta = self._answer.delta(choice, update)
        if not (delta or update.token_ids or update.finish_reason):
            return b""  # text that a resumed answer's client has
        first = not choice.started
        opening = self._opening(choice) if first else b""
        if self._plain_allowed and update.finish_reason is None and delta.keys() == _TEXT_ALONE:
            event = choice.head + _encode(delta["content"]) + self._plain_tail
        else:
            event = self._full(self._answer.chunk_choice(choice, update, delta))
        if not self._fleet:
            return opening + event if opening else event
        if first and not opening:
            return router_contract.first_comment(update.index, update.token_ids, choice.run) + event
        return opening + router_contract.comment(update.index, update.token_ids) + event

    def _opening(self, choice: Choice) -> bytes:
        """Return what comes before a choice's first text, as an event of its own."""
        chunk = self._opening_chunk(choice)
        choice.started = True
        if chunk is None:
            return b""
        return self._opening_comment(choice) + b"data: %s\n\n" % _encode(chunk)

    def _opening_comment(self, choice: Choice) -> bytes:
        if not self._fleet:
            return b""
        return router_contract.first_comment(choice.index, [], choice.run)

    def _opening_chunk(self, choice: Choice) -> dict[str, Any] | None:
        made = self._answer.opening_choice(choice)
        if made is None:
            return None
        extra = {}
        if self._answer.return_token_ids and "delta" in made:
            extra["prompt_token_ids"] = list(choice.run.request.prompt_token_ids)
        return self._chunk(made, extra)

    def _full(self, choice: dict[str, Any]) -> bytes:
        return b"data: %s\n\n" % _encode(self._chunk(choice))

    def _chunk(self, choice: dict[str, Any], extra: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._answer
        chunk = {**answer.envelope, **(extra or {}), "choices": [choice]}
        if answer.usage_in_each:
            chunk["usage"] = answer.usage
        elif answer.include_usage:
            chunk["usage"] = None
        return chunk

    def end(self) -> bytes:
        """The usage, if it was asked for, and [DONE]."""
        answer = self._answer
        usage = answer.usage
        made = b""
        if answer.include_usage:
            chunk = {**answer.envelope, "choices": [], "usage": usage}
            made = b"data: %s\n\n" % _encode(chunk)
            if self._fleet:
                made = router_contract.bare_comment() + made
        return made + (router_contract.bare_comment(usage) if self._fleet else b"") + DONE

    def error(self, error: ApiError) -> bytes:
        """An error after the head was sent: the openai client raises it."""
        comment = router_contract.bare_comment(self._answer.usage) if self._fleet else b""
        return comment + b"data: %s\n\n" % _encode(error.body())

    def handover(self) -> bytes:
        """The end of a stream at the drain deadline."""
        if self._fleet:
            return router_contract.handover_event(self._answer.generation, self._answer.usage)
        return self.error(shutting_down())


def shutting_down(extra: dict[str, Any] | None = None) -> ApiError:
    """503 for a request that the drain deadline ended."""
    return ApiError(
        503,
        "The server is shutting down and could not finish this request in time; send it again.",
        code="handover",
        headers={"retry-after": "1"},
        extra=extra,
    )
