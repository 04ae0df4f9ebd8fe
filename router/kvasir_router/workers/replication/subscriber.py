"""A worker's connection to the index process: made again and again, missed when it is silent."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from kvasir_router.feeds.silence import SilenceWatch
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.workers.replication.framed_socket import FramedSocket
from kvasir_router.workers.replication.messages import (
    Hello,
    ResyncRequest,
    ToIndex,
    ToWorker,
    Welcome,
    decode_frame,
    encode,
)

_log = structlog.get_logger("kvasir_router.workers")

FLUSH_SECONDS = 0.002
"""That something told may wait for more to go with."""
SILENCE_SECONDS = 1.0
"""After which the index process counts as gone: it speaks at least every 0.2 s."""
MAX_UNSENT = 4 * 2**20
"""Bytes; beyond them nothing more is told. The index process asks for all that matters."""

_ROOM = 2**18
_TICK = 0.1
_RECONNECT_SECONDS = 0.05
_MESSAGES_PER_FRAME = 64


class OutOfStepError(Exception):
    """News are missing."""


class IndexSubscriber:
    """`take` is called with each message, `away` when the index process is gone or stands still,
    `back` when it is there again."""

    def __init__(
        self,
        path: Path,
        take: Callable[[ToWorker], None],
        away: Callable[[], None],
        back: Callable[[], None],
    ) -> None:
        self._path = path
        self._take = take
        self._away = away
        self._back = back
        self._link: FramedSocket | None = None
        self._ended = asyncio.Event()
        self._number = 0
        self._told: list[ToIndex] = []
        self._timer: asyncio.TimerHandle | None = None
        self._silence: SilenceWatch[str] = SilenceWatch(SILENCE_SECONDS, _TICK)
        self.is_away = False
        self.dropped = 0
        """Messages that were not told."""
        self.losses = 0
        """Times that the index process was gone or silent."""

    def tell(self, message: ToIndex) -> None:
        """Tell the index process soon, if it is there."""
        if self._link is None or self._link.unsent > MAX_UNSENT:
            self.dropped += 1
            return
        self._told.append(message)
        if len(self._told) >= _MESSAGES_PER_FRAME:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    async def has_room(self) -> None:
        """Wait until the send buffer is nearly empty or the connection is lost."""
        while self._link is not None and self._link.unsent > _ROOM:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)

    def want_all(self) -> None:
        """Ask for the whole state."""
        self.tell(ResyncRequest())

    async def run(self) -> None:
        """Be connected, forever."""
        tasks = SupervisedTasks()
        tasks.keep("index link's watch", self._watch)
        try:
            while True:
                await self._once()
                await asyncio.sleep(_RECONNECT_SECONDS)
        finally:
            await tasks.stop()

    async def _once(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended.clear()
        try:
            _, link = await loop.create_unix_connection(
                lambda: FramedSocket(self._frame, self._ended.set), str(self._path)
            )
        except OSError:
            return
        self._link, self._told = link, [Hello(os.getpid())]
        self._flush()
        try:
            await self._ended.wait()
        finally:
            self._link = None
            link.close()
        _log.warning("the index process is gone; what is known stays in use")
        self._set_away(True)

    async def _watch(self) -> None:
        self._silence.heard("index", time.monotonic())
        while True:
            await asyncio.sleep(_TICK)
            if self._silence.expired(time.monotonic()) and not self.is_away:
                _log.warning("the index process is silent; what is known stays in use")
                self._set_away(True)

    def _frame(self, data: bytes) -> None:
        frame = decode_frame(data)
        self._silence.heard("index", time.monotonic())
        if frame.number is not None:
            if frame.number != self._number + 1:
                raise OutOfStepError(f"news {frame.number} came after {self._number}")
            self._number = frame.number
        is_new = False
        for message in frame.messages:
            if isinstance(message, Welcome):
                self._number, is_new = message.number, True
            self._take(message)
        if self.is_away:
            self._set_away(False)
            if not is_new:  # it stood still, and what was changed here meanwhile is not its word
                self.want_all()

    def _set_away(self, is_away: bool) -> None:
        if is_away is self.is_away:
            return
        self.is_away = is_away
        if is_away:
            self.losses += 1
            self._away()
        else:
            _log.info("the index process is back")
            self._back()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        told, self._told = self._told, []
        if told and self._link is not None:
            self._link.send(encode(told))
