"""A worker's connection to the index process: made again and again, missed when it is silent."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from kvasir_router.feeds.silence import SilenceWatch
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.workers.replication.framed_socket import READ_LIMIT, FramedSocket
from kvasir_router.workers.replication.message_batch import MessageBatch
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

SILENCE_SECONDS = 1.0
"""After which the index process counts as gone: it speaks at least every 0.2 s."""
MAX_UNSENT = 4 * 2**20
"""Bytes; beyond them nothing more is told. The index process asks for all that matters."""

_ROOM = 2**18
_TICK = 0.1
_RECONNECT_SECONDS = 0.05
_DEFECT_SECONDS = 0.5
"""Before the next connection, when what came over this one could not be applied."""


class OutOfStepError(Exception):
    """News are missing."""


class IndexSubscriber:
    """Connection to the index process. `on_message` is called with each message, `on_loss` when the
    index process is gone or stands still, `on_return` when it is there again."""

    def __init__(
        self,
        path: Path,
        on_message: Callable[[ToWorker], None],
        on_loss: Callable[[], None],
        on_return: Callable[[], None],
        tasks: SupervisedTasks,
    ) -> None:
        self._tasks = tasks
        self._path = path
        self._on_message = on_message
        self._on_loss = on_loss
        self._on_return = on_return
        self._link: FramedSocket | None = None
        self._number = 0
        self._batch: MessageBatch[ToIndex] = MessageBatch(self._send)
        self._silence: SilenceWatch[str] = SilenceWatch(SILENCE_SECONDS, _TICK)
        self.is_away = False
        self.dropped = 0
        """Messages that were not sent."""
        self.losses = 0
        """Times that the index process was gone or silent."""

    def tell(self, message: ToIndex) -> None:
        """Send a message to the index process soon, if it is there."""
        if self._link is None or self._link.unsent > MAX_UNSENT:
            self.dropped += 1
        else:
            self._batch.add(message)

    async def has_room(self) -> None:
        """Wait until the send buffer is nearly empty or the connection is lost."""
        while self._link is not None and self._link.unsent > _ROOM:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)

    async def run(self) -> None:
        """Be connected, forever."""
        tasks = self._tasks.child()
        tasks.keep("index link's watch", self._watch, every=_TICK)
        try:
            while True:
                await self._follow()
                await asyncio.sleep(_RECONNECT_SECONDS)
        finally:
            await tasks.stop()

    async def _follow(self) -> None:
        """Connect, and handle what the index process says until the connection ends."""
        try:
            streams = await asyncio.open_unix_connection(self._path, limit=READ_LIMIT)
        except OSError:
            return
        self._link = link = FramedSocket(*streams)
        self._send([Hello(os.getpid())])
        try:
            await link.receive_all(self._handle_frame)
        except OutOfStepError as error:
            _log.warning("the link to the index process is broken off", reason=str(error))
        except Exception as error:
            self._tasks.defect("index link", error)
            await asyncio.sleep(_DEFECT_SECONDS)
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

    def _handle_frame(self, data: bytes) -> None:
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
            self._on_message(message)
        if self.is_away:
            self._set_away(False)
            if not is_new:  # it stood still, and what was changed here meanwhile is not its word
                self.tell(ResyncRequest())

    def _set_away(self, is_away: bool) -> None:
        if is_away is self.is_away:
            return
        self.is_away = is_away
        if is_away:
            self.losses += 1
            self._on_loss()
        else:
            _log.info("the index process is back")
            self._on_return()

    def _send(self, messages: list[ToIndex]) -> None:
        if self._link is not None:
            self._link.send(encode(messages))
