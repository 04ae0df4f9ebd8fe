"""Every replica's feeds, begun when it comes and ended when it goes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kvasir_router.discovery.specs import EngineKind
from kvasir_router.feeds.load_stream import ATTEMPT_SECONDS, LoadFeed
from kvasir_router.feeds.metrics_scraper import Scraper, metrics_of, read_capacity
from kvasir_router.feeds.silence import SilenceWatch
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.model_identity import fleet_seed
from kvasir_router.fleet.replica import Replica
from kvasir_router.fleet.replica_load import STALE_SECONDS
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.options.router_settings import Feeding
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.wire.tls import ReplicaTrust

if TYPE_CHECKING:
    from kvasir_router.feeds.event_feed import EventFeed
    from kvasir_router.feeds.event_sockets import EventSockets

_TICK = 0.05


class Feeds:
    """Feeds from engines, taken to where they are used: load to the replica, blocks and prompts to
    the sink of its model's policy, silence to `suspect`."""

    def __init__(
        self,
        feeding: Feeding,
        secrets: FleetSecrets,
        trust: ReplicaTrust,
        tasks: SupervisedTasks,
        *,
        suspect: Callable[[Replica], None],
    ) -> None:
        """`trust`: of engines whose URL is https."""
        self._feeding = feeding
        self._secrets = secrets
        self._trust = trust
        self._suspect = suspect
        self._silence: SilenceWatch[Replica] = SilenceWatch(STALE_SECONDS, _TICK)
        self._supervised = tasks
        self._tasks: dict[Replica, set[asyncio.Task[None]]] = {}
        self._readings: dict[Replica, asyncio.Task[None]] = {}
        """Tasks that ask for the KV cache's size since the load stream began."""
        self._events: dict[Replica, EventFeed] = {}
        self._plumbing: EventSockets | None = None
        self._watches_silence = False

    def watch(self, model: Model, replica: Replica) -> None:
        """Begin to listen to a replica."""
        spec = replica.spec
        sink = model.sink
        self._seed(model)
        self._tasks[replica] = set()
        if spec.grpc_port is not None:
            self._watch_load(replica, spec.grpc_port, sink)
        elif (metrics := metrics_of(spec)) is not None:
            secrets = self._secrets if spec.engine is EngineKind.KVASIR else None
            scraper = Scraper(replica, metrics, self._feeding.scrape_interval, secrets)
            self._keep(replica, "scrapes", scraper.run, scraper.every)
        if spec.kv_events is not None and sink is not None:
            self._watch_events(replica, spec.kv_events, spec.kv_replay, sink)

    def policy_changed(self, model: Model) -> None:
        """The model has another sink, which knows nothing yet."""
        for replica in model.replicas.values():
            self.forget_replica(model, replica)
            self.watch(model, replica)

    def forget_replica(self, model: Model, replica: Replica) -> None:
        """Stop the feeds of a removed replica."""
        self._silence.forget_source(replica)
        self._readings.pop(replica, None)
        for task in self._tasks.pop(replica):
            task.cancel()
        events = self._events.pop(replica, None)
        if events is not None:
            events.close()

    def identity_changed(self, model: Model) -> None:
        """Its engines' hashes have another seed: those of foreign ones are made anew with it."""
        if self._seed(model):
            for replica, events in self._events.items():
                foreign = replica.spec.engine is not EngineKind.KVASIR
                if foreign and replica in model.replicas.values():
                    events.replay_all()

    def replay_events(self, model: Model) -> None:
        """Tell the model's sink anew what is in its replicas' caches."""
        for replica in model.replicas.values():
            if replica in self._events:
                self._events[replica].replay_all()

    def emptied(self, model: Model, replica: Replica) -> None:
        """Drop what is known of a replica whose process has ended."""
        self._silence.forget_source(replica)
        replica.load.lost()
        if replica in self._events:
            self._events[replica].emptied()

    async def stop(self) -> None:
        """Listen to nobody any more."""
        await self._supervised.stop()
        for events in self._events.values():
            events.close()
        self._events.clear()
        if self._plumbing is not None:
            self._plumbing.close()

    def _seed(self, model: Model) -> bool:
        """Return True if the model's index had another seed before."""
        sink = model.sink
        if not isinstance(sink, ModelIndex):
            return False
        return sink.reseed(fleet_seed(model.identity, self._secrets.hash_key))

    def _watch_load(self, replica: Replica, port: int, sink: BlockSink | None) -> None:
        feed = LoadFeed(
            replica,
            port,
            self._secrets,
            self._trust if replica.spec.tls else None,
            spoke=self._silence.heard,
            connected=self._connected,
            sink=sink,
            tasks=self._supervised,
        )
        self._keep(replica, "load stream", feed.run, ATTEMPT_SECONDS)
        if not self._watches_silence:
            self._watches_silence = True
            tasks = self._supervised
            tasks.keep("silence", self._watch_silence, required=True, every=_TICK)

    def _watch_events(
        self, replica: Replica, address: str, replay_address: str | None, sink: BlockSink
    ) -> None:
        # Imported here: a fleet without events does without zmq
        from kvasir_router.feeds.event_feed import EventFeed
        from kvasir_router.feeds.event_sockets import EventSockets

        if self._plumbing is None:
            self._plumbing = EventSockets(self._secrets, self._supervised)
        self._events[replica] = EventFeed(replica, address, replay_address, sink, self._plumbing)

    def _connected(self, replica: Replica) -> None:
        """A load stream has begun; what it does not tell is the KV cache's size."""
        if replica in self._readings:
            self._readings[replica].cancel()
        metrics = metrics_of(replica.spec)
        if metrics is None:
            return
        reading = read_capacity(replica, metrics, self._secrets.lines)
        self._readings[replica] = self._supervised.run("KV capacity", reading)
        self._own(replica, self._readings[replica])

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            for replica in self._silence.expired(time.monotonic()):
                replica.feeds["load_stream_silent"] += 1
                try:
                    self._suspect(replica)
                except Exception as error:  # the others are silent, too
                    self._supervised.defect("silence", error)

    def _keep(
        self, replica: Replica, name: str, work: Callable[[], Awaitable[None]], every: float
    ) -> None:
        self._own(replica, self._supervised.keep(name, work, every=every))

    def _own(self, replica: Replica, task: asyncio.Task[None]) -> None:
        self._tasks[replica].add(task)
        task.add_done_callback(self._tasks[replica].discard)
