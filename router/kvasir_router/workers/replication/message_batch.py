"""Messages that wait a little to be sent together."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from kvasir_router.workers.replication.messages import BLOCKS_PER_MESSAGE

_FLUSH_SECONDS = 0.002
"""Seconds that a message may wait for others to go with."""
_MESSAGES_PER_FRAME = 64

M = TypeVar("M")


class MessageBatch(Generic[M]):
    """Collect messages and send them as one list, at the latest after two milliseconds."""

    def __init__(self, send: Callable[[list[M]], None]) -> None:
        self._send = send
        self._messages: list[M] = []
        self._blocks = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, message: M, blocks: int = 0) -> None:
        """Send `message` soon; `blocks` is how many KV or text blocks it tells of."""
        self._messages.append(message)
        self._blocks += blocks
        if len(self._messages) >= _MESSAGES_PER_FRAME or self._blocks >= BLOCKS_PER_MESSAGE:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Send what waits now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        messages, self._messages, self._blocks = self._messages, [], 0
        if messages:
            self._send(messages)
