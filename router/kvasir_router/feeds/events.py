"""One replica's KV events: from its publisher's sockets, through the recovery, to the index."""

import asyncio
import time
from collections.abc import Callable

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from kvasir.fleet_secret import secure_client
from kvasir.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventError,
    decode_batch,
    parse_frames,
)
from kvasir_router.feeds.pump import Pump, SocketReader
from kvasir_router.feeds.recovery import Batch, Recovery
from kvasir_router.feeds.sink import BlockSink
from kvasir_router.fleet.replica import Replica

_log = structlog.get_logger("kvasir_router.feeds")

MAX_MESSAGE_BYTES = 4 * 2**20
"""A step's events are some 100 KB; a publisher that sends more is disconnected."""
MAX_WAITING = 1024
"""Messages in a socket that is not read for a while. More are lost, and asked for again."""
MAX_REPLAYS = 8
"""At once, of all replicas."""
REPLAY_IDLE_SECONDS = 2.0
REPLAY_SECONDS = 120.0
_HEARTBEAT_MS = 2000
_REOPEN_SECONDS = 0.1
_CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_REPLAY_END = -1


class EventPlumbing:
    """What the event feeds of a process share."""

    def __init__(self, fleet_secret: str | None) -> None:
        self.pump = Pump()
        self.replays = asyncio.Semaphore(MAX_REPLAYS)
        self._context = zmq.Context(io_threads=1)
        self._secret = fleet_secret or ""

    def open(self, kind: int) -> zmq.Socket[bytes]:
        """A client socket with the limits and the secret of all."""
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.ipv6 = True
        socket.rcvhwm = MAX_WAITING
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 1000
        socket.heartbeat_ivl = _HEARTBEAT_MS
        socket.heartbeat_timeout = 3 * _HEARTBEAT_MS
        secure_client(socket, self._secret)
        return socket

    def close(self) -> None:
        """When every feed is closed."""
        self._context.destroy(linger=0)


class EventFeed:
    """Subscribed from its making until `close`. Output of its recovery."""

    def __init__(
        self,
        replica: Replica,
        address: str,
        replay_address: str | None,
        sink: BlockSink,
        plumbing: EventPlumbing,
    ) -> None:
        self._replica = replica
        self._address = address
        self._replay_address = replay_address
        self._sink = sink
        self._plumbing = plumbing
        self._recovery = Recovery(self, can_replay=replay_address is not None)
        self._replay: Replay | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = False
        self._sockets: _Subscription | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._open()

    def close(self) -> None:
        """Hear no more."""
        self.stop_replay()
        self._close()
        if self._reopening is not None:
            self._reopening.cancel()

    def emptied(self) -> None:
        """The engine's process is known to be gone."""
        self._recovery.emptied()

    # Output

    def apply(self, batch: Batch) -> None:
        """Recovery's next batch: give its events to the sink."""
        sink, replica = self._sink, self._replica
        replica.feeds["kv_batches"] += 1
        for event in batch.events:
            if isinstance(event, BlockStored):
                sink.stored(replica, event)
            elif isinstance(event, BlockRemoved):
                sink.removed(replica, event)
            else:
                sink.cleared(replica)

    def clear(self) -> None:
        """Recovery lost the thread."""
        self._replica.feeds["kv_cleared"] += 1
        self._sink.cleared(self._replica)

    def start_replay(self, number: int) -> None:
        """Recovery needs what came before."""
        self._replica.feeds["kv_replays"] += 1
        self._read(False)
        self._replay = Replay(self._plumbing, self._replay_address or "", number, self._replayed)
        task = asyncio.create_task(self._run(self._replay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop_replay(self) -> None:
        """Recovery needs it no longer."""
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.abandon()
            self._read(True)

    # What comes

    def _open(self) -> None:
        self._reopening = None
        self._sockets = _Subscription(
            self._plumbing, self._address, self._published, self._monitored
        )
        self._read(not self._recovery.replaying)

    def _close(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    def _read(self, reads: bool) -> None:
        if self._sockets is not None and reads:
            self._sockets.live.resume()
        elif self._sockets is not None:
            self._sockets.live.pause()

    def _published(self, frames: list[bytes]) -> None:
        batch = self._parse(frames)
        if batch is not None and batch.number >= 0:
            self._recovery.live(batch, time.monotonic())

    def _monitored(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == _CONNECTED:
            self._refused = False
            self._recovery.connected(time.monotonic())
        elif event == zmq.EVENT_DISCONNECTED:
            # By a new socket: what waits in this one may be from an engine that is gone. And ZMQ
            # does not come back by itself to one that broke the protocol or the size limit.
            self._close()
            self._reopening = asyncio.get_running_loop().call_later(_REOPEN_SECONDS, self._open)
        elif not self._refused:
            self._refused = True
            _log.warning(
                "KV events refused; is the fleet secret the engine's?", replica=self._replica.id
            )

    def _parse(self, frames: list[bytes]) -> Batch | None:
        """None for what has no number. A payload that cannot be read may have said anything: it
        becomes one that forgets everything."""
        try:
            _, number, payload = parse_frames(frames)
        except KVEventError:
            self._replica.feeds["kv_bad_messages"] += 1
            return None
        if number == _REPLAY_END:
            return Batch(number, 0.0, [])
        try:
            batch = decode_batch(payload)
        except KVEventError as error:
            self._replica.feeds["kv_bad_messages"] += 1
            _log.warning("a KV event batch is unreadable", replica=self._replica.id, error=error)
            return Batch(number, 0.0, [AllBlocksCleared()])
        return Batch(number, batch.ts, batch.events)

    # Replay

    async def _run(self, replay: "Replay") -> None:
        async with self._plumbing.replays:
            whole = await replay.run()
        if self._replay is not replay:
            return  # abandoned
        self._replay = None
        now = time.monotonic()
        if whole:
            self._recovery.replay_ended(now)
        else:
            self._replica.feeds["kv_replays_failed"] += 1
            _log.warning("KV events could not be replayed", replica=self._replica.id)
            self._recovery.replay_failed(now)
        self._read(not self._recovery.replaying)

    def _replayed(self, frames: list[bytes]) -> bool:
        """Whether that was the end."""
        batch = self._parse(frames)
        if batch is None:
            return False
        if batch.number == _REPLAY_END:
            return True
        self._recovery.replayed(batch, time.monotonic())
        return False


class _Subscription:
    """A connection to a publisher: what it sends, and what becomes of the connection."""

    def __init__(
        self,
        plumbing: EventPlumbing,
        address: str,
        published: Callable[[list[bytes]], None],
        monitored: Callable[[list[bytes]], None],
    ) -> None:
        socket = plumbing.open(zmq.SUB)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(_CONNECTED | zmq.EVENT_DISCONNECTED | _REFUSED)
        self._published = published
        self._monitor = SocketReader(monitor, plumbing.pump, monitored)
        self.live = SocketReader(socket, plumbing.pump, self._message)
        socket.connect(address)

    def close(self) -> None:
        """Drop what waits, too."""
        self.live.socket.disable_monitor()
        self._monitor.close()
        self.live.close()

    def _message(self, frames: list[bytes]) -> None:
        # That the connection is new is older news than what came over it
        while self._monitor.read_one():
            pass
        if self.live.reading:  # else a replay has just begun, which brings it again
            self._published(frames)


class Replay:
    """One answer to the question for missed batches."""

    def __init__(
        self,
        plumbing: EventPlumbing,
        address: str,
        number: int,
        take: Callable[[list[bytes]], bool],
    ) -> None:
        """`take` is given each message, and returns True for the last one."""
        self._plumbing = plumbing
        self._address = address
        self._number = number
        self._take = take
        self._ended = asyncio.Event()
        self._heard = 0.0
        self._reader: SocketReader | None = None

    async def run(self) -> bool:
        """Whether it came to its end: not too slow, and not too long."""
        if self._ended.is_set():
            return False
        socket = self._plumbing.open(zmq.DEALER)
        socket.connect(self._address)
        self._reader = SocketReader(socket, self._plumbing.pump, self._message)
        try:
            socket.send_multipart([b"", self._number.to_bytes(8, "big")], zmq.NOBLOCK)
            self._reader.look()
            return await self._wait()
        finally:
            self._reader.close()

    def abandon(self) -> None:
        """No message is taken after this."""
        self._ended.set()
        if self._reader is not None:
            self._reader.close()

    async def _wait(self) -> bool:
        now = self._heard = time.monotonic()
        until = now + REPLAY_SECONDS
        while now < min(until, self._heard + REPLAY_IDLE_SECONDS):
            try:
                async with asyncio.timeout(self._heard + REPLAY_IDLE_SECONDS - now):
                    await self._ended.wait()
                return True
            except TimeoutError:
                now = time.monotonic()
        return False

    def _message(self, frames: list[bytes]) -> None:
        self._heard = time.monotonic()
        if not self._ended.is_set() and self._take(frames):
            self._ended.set()
