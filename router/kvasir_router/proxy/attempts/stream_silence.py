"""Limit of an engine's silence in one stream, by the speed that it was measured at."""

import time
from collections.abc import Callable
from typing import NamedTuple

from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.failures.silence_limit import SilenceLimit
from kvasir_router.wire.query import BYTES_PER_TOKEN
from kvasir_router.wire.sse import DataLines
from kvasir_router.wire.upstream import ResponseHead


class StreamLimits(NamedTuple):
    """Seconds that an engine may send nothing of a stream but comments; 0 = no limit."""

    first_byte: float
    """Beside the time for its prompts at the measured speed."""
    idle: float
    """Between two parts."""


class StreamSilence:
    """Watch that the parts of an answer come, and measure how long the first one took."""

    def __init__(self, replica: Replica, limits: StreamLimits) -> None:
        self._replica = replica
        self._limits = limits
        self._silence: SilenceLimit | None = None
        self._data_lines = DataLines()
        self._began_at = 0.0
        self._tokens_ahead = 0
        """Prompt tokens in flight at the replica when the request was sent, with its own."""

    def begin(self, size: int, exceeded: Callable[[str, float], None]) -> None:
        """The request was sent; `size`: bytes of its body, for policies that tell of no tokens.
        `exceeded` is SilenceLimit's."""
        replica, first = self._replica, self._limits.first_byte
        self._tokens_ahead = replica.load.prefill_tokens
        if first:
            tokens = self._tokens_ahead or round(size / BYTES_PER_TOKEN)
            first += replica.prefill.allowance(tokens)
        self.end()
        self._data_lines = DataLines()
        self._began_at = time.monotonic()
        self._silence = SilenceLimit(first, self._limits.idle, exceeded)

    def heard(self, head: ResponseHead, data: bytes, last: bool) -> None:
        """A part of the answer came."""
        silence = self._silence
        if silence is None:
            return
        # A server that hangs may go on with comments that keep the connection open.
        progress = self._data_lines.found_in(data) if head.has_events else len(data) > 0
        if progress and silence.heard() and head.status == 200:
            seconds = time.monotonic() - self._began_at
            self._replica.prefill.observed(self._tokens_ahead, seconds)
        if last:
            self.end()

    def pause(self) -> None:
        """The client does not keep up: nothing is read."""
        if self._silence is not None:
            self._silence.pause()

    def resume(self) -> None:
        """The client keeps up."""
        if self._silence is not None:
            self._silence.resume()

    def end(self) -> None:
        """Watch no more."""
        silence, self._silence = self._silence, None  # a circle would have to be collected
        if silence is not None:
            silence.end()
