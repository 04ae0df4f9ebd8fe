"""The index process's end of all links: one stream of news, and a snapshot of the state for a
worker that lacks some of it."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import partial

import structlog

from kvasir_router.tasks import SupervisedTasks
from kvasir_router.workers.replication.framed_socket import READ_LIMIT, FramedSocket
from kvasir_router.workers.replication.message_batch import MessageBatch
from kvasir_router.workers.replication.messages import (
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

BEAT_SECONDS = 0.2
"""Maximum seconds between two frames; a silent publisher counts as gone."""
MAX_BEHIND = 16 * 2**20
"""Bytes that a worker may be behind; then it gets a snapshot, when it reads again."""

_HELLO_SECONDS = 10.0


class WorkerLink:
    """Link to one worker. News are sent in their order, and between them the pieces of a snapshot,
    of which each is true at its place in the order."""

    def __init__(self, publisher: "Publisher", link: FramedSocket, pid: int) -> None:
        self.pid = pid
        """Process id."""
        self.link = link
        self._publisher = publisher
        self._behind = True
        """True while news are withheld: the next snapshot will contain them."""
        self._wanted = asyncio.Event()
        self._wanted.set()

    def send_news(self, frame: bytes) -> None:
        """Send news, unless the worker lags so far that it gets a snapshot instead."""
        if self._behind:
            return
        if self.link.unsent > MAX_BEHIND:
            _log.warning("a worker lags: it will be told everything anew", pid=self.pid)
            self._behind = True
            self._publisher.lagged += 1
            self.resync()
            return
        self.link.send(frame)

    def tell(self, message: ToWorker) -> None:
        """Send a message to this worker alone."""
        self.link.send(encode(Frame(None, [message])))

    def resync(self) -> None:
        """Send a new snapshot as soon as the socket takes it; one under way is broken off."""
        self._wanted.set()

    async def send_snapshots(self) -> None:
        """Send a snapshot whenever one is wanted, until the connection ends. It ends with this:
        a worker without its snapshot connects again."""
        try:
            while True:
                await self._wanted.wait()
                await self.link.drain()
                self._wanted.clear()
                await self._send_snapshot()
        except ConnectionError:
            return
        finally:
            self.link.close()

    async def _send_snapshot(self) -> None:
        publisher = self._publisher
        publisher.flush()
        self._behind = False
        self.tell(Welcome(publisher.number, publisher.fresh))
        state = publisher.state()
        while not self._wanted.is_set():
            publisher.flush()
            piece = next(state, None)
            if piece is None:
                self.tell(Complete())
                return
            self.link.send(encode(Frame(None, piece)))
            await asyncio.sleep(0)
            await self.link.drain()


class Publisher:
    """Sends news to all workers.

    `handle` is called with what a worker says, `changed` with a worker that has come or gone;
    `state` returns the whole state in pieces, each as it is when it is asked for.
    """

    def __init__(
        self,
        tasks: SupervisedTasks,
        handle: Callable[[WorkerLink, ToIndex], None],
        changed: Callable[[WorkerLink], None],
        state: Callable[[], Iterator[list[ToWorker]]],
    ) -> None:
        self.state = state
        self._tasks = tasks
        self._handle = handle
        self._changed = changed
        self._news: MessageBatch[ToWorker] = MessageBatch(self._send)
        self.tell = self._news.add
        """Send news to all soon; `blocks` is how many KV or text blocks they tell of."""
        self.flush = self._news.flush
        """Send the news that wait."""
        self.fresh = True
        """True while the index process has only just begun."""
        self.number = 0
        """Number of the last news."""
        self.lagged = 0
        """Times that a worker was too slow."""
        self.workers: set[WorkerLink] = set()
        """Those that are connected and have said who they are."""

    async def serve(self, listener: socket.socket) -> None:
        """Serve workers' connections, forever."""
        server = await asyncio.start_unix_server(
            lambda reader, writer: self._tasks.run("worker's link", self._serve(reader, writer)),
            sock=listener.dup(),  # the server closes its own: this may be called again
            limit=READ_LIMIT,
        )
        try:
            await asyncio.Future()
        finally:
            server.close()

    def ask(self) -> None:
        """Ask all workers for their statistics."""
        for worker in self.workers:
            worker.tell(Ask())

    async def send_heartbeats(self) -> None:
        """Send a frame every now and then, forever."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.flush()
            self._send([])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = FramedSocket(reader, writer)
        try:
            hello = await self._receive_hello(link)
            if hello is not None:
                await self._follow(WorkerLink(self, link, hello.pid))
        finally:
            link.close()

    @staticmethod
    async def _receive_hello(link: FramedSocket) -> Hello | None:
        """Return a connection's first message; None for one that ends or says nothing."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                [hello] = decode_to_index(await link.receive())
        except (EOFError, OSError):  # a TimeoutError is one
            return None
        return hello if isinstance(hello, Hello) else None

    async def _follow(self, worker: WorkerLink) -> None:
        """Handle what a worker says, and send it news and snapshots, until its connection ends."""
        self.workers.add(worker)
        self._changed(worker)
        snapshots = self._tasks.run("snapshots", worker.send_snapshots())
        try:
            await worker.link.receive_all(partial(self._handle_frame, worker))
        finally:
            snapshots.cancel()
            self.workers.discard(worker)
            self._changed(worker)

    def _handle_frame(self, worker: WorkerLink, frame: bytes) -> None:
        for message in decode_to_index(frame):
            try:
                self._handle(worker, message)
            except Exception as error:
                # The link stays, but what the message would have changed may be missing now
                self._tasks.defect("worker's message", error)
                worker.resync()

    def _send(self, messages: list[ToWorker]) -> None:
        self.number += 1
        frame = encode(Frame(self.number, messages))
        for worker in self.workers:
            worker.send_news(frame)
