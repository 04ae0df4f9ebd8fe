"""Server-sent events whose tokens have thousands of log-probabilities each."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from kvasir_engine.server.long_json import encode_in_turns
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai.answer import Answer
from kvasir_engine.server.openai.sse import EventWriter
from kvasir_engine.text.sample_state import SampleUpdate

_PLACE = b"\0"
"""Stand in an event for its chunk; no event has this byte."""


class WideEventWriter(EventWriter):
    """Render an Answer as SSE, each chunk in turns of the event loop."""

    is_wide = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._chunks: list[dict[str, Any]] = []
        """Those of the updates rendered last."""

    async def wide_events(
        self, updates: list[SampleUpdate], turns: LoopTurns
    ) -> AsyncGenerator[bytes, None]:
        """See StreamWriter."""
        events = self.events(updates)
        if not events:
            return
        chunks, self._chunks = self._chunks, []
        first, *others = events.split(_PLACE)
        yield first
        for chunk, after in zip(chunks, others, strict=True):
            for part in await encode_in_turns(chunk, turns):
                yield part
                await turns.pause()
            yield after

    def _full(self, choice: dict[str, Any]) -> bytes:
        self._chunks.append(self._chunk(choice))
        return b"data: %s\n\n" % _PLACE
