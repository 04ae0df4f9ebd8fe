"""The index process's end of all links: one stream of news, and the whole state for whoever lacks
some of it."""

import asyncio
from collections.abc import Callable, Iterator

import structlog

from kvasir_router.workers.replication.framed_socket import FramedSocket
from kvasir_router.workers.replication.messages import (
    BLOCKS_PER_MESSAGE,
    Ask,
    Complete,
    Frame,
    Hello,
    ToIndex,
    ToWorker,
    Welcome,
    decode_to_index,
    encode,
)

_log = structlog.get_logger("kvasir_router.workers")

FLUSH_SECONDS = 0.002
"""That news may wait for others to go with."""
BEAT_SECONDS = 0.2
"""Maximum seconds between two frames; a silent publisher counts as gone."""
MAX_BEHIND = 16 * 2**20
"""Bytes that a worker may be behind; then it is told the whole state, when it reads again."""

_MESSAGES_PER_FRAME = 64
_HELLO_SECONDS = 10.0


class WorkerLink:
    """One worker. What it is told is in order: the news, and between them its copy of the state,
    of which each piece is true at its place in the order."""

    def __init__(self, hub: "Publisher") -> None:
        self._hub = hub
        self.link = FramedSocket(self._taken, self._ended, self._go_on)
        self.pid: int | None = None
        """Process id; None until it has said who it is."""
        self._state: Iterator[list[ToWorker]] | None = None
        self._behind = True

    def news(self, frame: bytes) -> None:
        """Send a log entry, unless the worker lags so far that it will get a snapshot."""
        if self._behind:
            return
        if self.link.unsent > MAX_BEHIND:
            _log.warning("a worker lags: it will be told everything anew", pid=self.pid)
            self._behind, self._state = True, None
            self._hub.lagged += 1
            return
        self.link.send(frame)

    def tell(self, message: ToWorker) -> None:
        """Something for this worker alone."""
        self.link.send(encode(Frame(None, [message])))

    def begin(self) -> None:
        """Tell it the whole state."""
        self._hub.flush()
        self._behind = False
        self.tell(Welcome(self._hub.number, self._hub.fresh))
        self._state = self._hub.state()
        self._go_on()

    def _go_on(self) -> None:
        """Its socket takes more: the next piece of the state, news having their turn between."""
        if self._behind and self.pid is not None:
            self.begin()
            return
        if self._state is None or self.link.is_full:
            return
        self._hub.flush()
        piece = next(self._state, None)
        if piece is None:
            self._state = None
            self.tell(Complete())
        else:
            self.link.send(encode(Frame(None, piece)))
            asyncio.get_running_loop().call_soon(self._go_on)

    def _taken(self, frame: bytes) -> None:
        for message in decode_to_index(frame):
            if isinstance(message, Hello):
                self.pid = message.pid
                self.begin()
                self._hub.changed()
            elif self.pid is not None:
                self._hub.take_message(self, message)

    def _ended(self) -> None:
        self._hub.left(self)


class Publisher:
    """All workers. `take` is called with what they say, `gone` with the process id of one that has
    left; `state` tells the whole state in pieces, as it is when each is asked for."""

    def __init__(
        self,
        take: Callable[[WorkerLink, ToIndex], None],
        gone: Callable[[int], None],
        state: Callable[[], Iterator[list[ToWorker]]],
    ) -> None:
        self.take_message = take
        self.state = state
        self._gone = gone
        self.fresh = True
        self.number = 0
        """Number of the last news."""
        self.lagged = 0
        """Times that a worker was too slow."""
        self.changed: Callable[[], None] = lambda: None
        """Told when a worker has come or gone."""
        self._peers: set[WorkerLink] = set()
        self._news: list[ToWorker] = []
        self._weight = 0
        self._timer: asyncio.TimerHandle | None = None

    def connected(self) -> FramedSocket:
        """A protocol for a new connection."""
        peer = WorkerLink(self)
        self._peers.add(peer)
        asyncio.get_running_loop().call_later(_HELLO_SECONDS, self._drop_if_mute, peer)
        return peer.link

    def left(self, peer: WorkerLink) -> None:
        """Its connection is lost."""
        self._peers.discard(peer)
        if peer.pid is not None:
            self._gone(peer.pid)
            self.changed()

    @property
    def peers(self) -> list[WorkerLink]:
        """Those who have said who they are."""
        return [peer for peer in self._peers if peer.pid is not None]

    def tell(self, message: ToWorker, weight: int = 0) -> None:
        """News for all; `weight`: its blocks."""
        self._news.append(message)
        self._weight += weight
        if len(self._news) >= _MESSAGES_PER_FRAME or self._weight >= BLOCKS_PER_MESSAGE:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def ask(self) -> None:
        """Ask all for their numbers."""
        for peer in self.peers:
            peer.tell(Ask())

    def flush(self) -> None:
        """Send the news that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._news:
            self._send()

    async def beat(self) -> None:
        """Say something every now and then, forever."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._send()

    def _send(self) -> None:
        self.number += 1
        frame = encode(Frame(self.number, self._news))
        self._news, self._weight = [], 0
        for peer in self._peers:
            peer.news(frame)

    def _drop_if_mute(self, peer: WorkerLink) -> None:
        if peer.pid is None and peer in self._peers:
            peer.link.close()
