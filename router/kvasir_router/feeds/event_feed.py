"""KV events of one replica: from its publisher's sockets, through the recovery, to the index."""

import asyncio
import time
from functools import partial

import structlog
import zmq

from kvasir.wire.kv_events import AllBlocksCleared, KVEventError, decode_batch, parse_frames
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.feeds.event_recovery import Batch, Recovery
from kvasir_router.feeds.event_replay import Replay
from kvasir_router.feeds.event_sockets import EventSockets
from kvasir_router.feeds.event_subscription import Subscription
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import BlockSink, apply_event

_log = structlog.get_logger("kvasir_router.feeds")

_REOPEN_SECONDS = 0.1
_REPLAY_END = -1


class EventFeed:
    """The KV events of one engine, from creation until `close`: Subscriber of its connection and
    RecoveryActions of its recovery."""

    def __init__(
        self,
        replica: Replica,
        address: str,
        replay_address: str | None,
        sink: BlockSink,
        plumbing: EventSockets,
    ) -> None:
        self._replica = replica
        self._address = address
        self._replay_address = replay_address
        self._sink = sink
        self._plumbing = plumbing
        self._recovery = Recovery(self, can_replay=replay_address is not None)
        self._replay: Replay | None = None
        self._replay_number, self._replay_secret = 0, ""
        self._tasks = plumbing.tasks
        self._refusals = 0
        """Refused connections since the last good one."""
        self._secret = ""
        """The secret that was tried last."""
        self._subscription: Subscription | None = None
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

    def replay_all(self) -> None:
        """Tell the sink everything anew, as far as the engine remembers it."""
        if self._replay_address is not None:
            self._recovery.emptied()
            self._recovery.connected(time.monotonic())

    # RecoveryActions

    def apply(self, batch: Batch) -> None:
        """Recovery's next batch: give its events to the sink."""
        self._replica.feeds["kv_batches"] += 1
        for event in batch.events:
            apply_event(self._sink, self._replica, event)

    def clear(self) -> None:
        """Recovery lost the thread."""
        self._replica.feeds["kv_cleared"] += 1
        apply_event(self._sink, self._replica, AllBlocksCleared())

    def start_replay(self, number: int) -> None:
        """Recovery needs what came before."""
        self._replica.feeds["kv_replays"] += 1
        self._read(False)
        self._begin_replay(number)

    def _begin_replay(self, number: int) -> None:
        self._replay_number, self._replay_secret = number, self._secret
        self._replay = Replay(
            partial(self._plumbing.open, zmq.DEALER, self._secret),
            self._plumbing.pump,
            self._replay_address or "",
            number,
            self._replayed,
            self._tasks.limit,
        )
        self._tasks.run("replay", self._run(self._replay))

    def stop_replay(self) -> None:
        """Recovery needs it no longer."""
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.abandon()
            self._read(True)

    # Subscriber

    def connected(self) -> None:
        """The publisher is there, perhaps another one than before."""
        self._refusals = 0
        if self._replay is not None and self._replay_secret != self._secret:
            # The engine has another key since then: it will not answer
            self._replay.abandon()
            self._begin_replay(self._replay_number)
        self._recovery.connected(time.monotonic())

    def disconnected(self) -> None:
        """Close the subscription, and open a new one later."""
        self._close()
        self._reopening = asyncio.get_running_loop().call_later(_REOPEN_SECONDS, self._open)

    def refused(self) -> None:
        """Try the next secret; log once that the engine refuses them all."""
        self._refusals += 1
        if self._refusals == max(1, len(self._secrets)):
            _log.warning(
                "KV events refused; is the fleet secret the engine's?", replica=self._replica.id
            )

    def published(self, frames: list[bytes]) -> None:
        """A step's events."""
        batch = self._parse(frames)
        if batch is not None and batch.number >= 0:
            self._recovery.live(batch, time.monotonic())

    def _open(self) -> None:
        self._reopening = None
        secrets = self._secrets
        if secrets:
            # An engine has the key of one secret, which may be before or after a change of its own
            self._secret = secrets[self._refusals % len(secrets)]
        socket = self._plumbing.open(zmq.SUB, self._secret)
        self._subscription = Subscription(socket, self._address, self._plumbing.pump, self)
        self._read(not self._recovery.replaying)

    @property
    def _secrets(self) -> tuple[str, ...]:
        """Secrets that the engine may ask for."""
        own = self._replica.spec.engine is EngineKind.KVASIR
        return self._plumbing.secrets.now.accepted if own else ()

    def _close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _read(self, reads: bool) -> None:
        if self._subscription is not None:
            self._subscription.read(reads)

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

    async def _run(self, replay: Replay) -> None:
        whole = False
        try:
            async with self._plumbing.replays:
                whole = await replay.run()
        except Exception as error:  # what waits for its end would wait for ever
            self._tasks.defect("replay", error)
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
        """Return True if the replay has ended."""
        batch = self._parse(frames)
        if batch is None:
            return False
        if batch.number == _REPLAY_END:
            return True
        self._recovery.replayed(batch, time.monotonic())
        return False
