"""The index process: sees the fleet for all workers, and has the admin port."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import structlog

from kvasir_router.admin.admin_server import AdminServer
from kvasir_router.admin.audit_log import open_audit
from kvasir_router.discovery.specs import (
    DiscoveryError,
    ModelSpec,
    PolicySpec,
    ReplicaSpec,
    Snapshot,
)
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Replica
from kvasir_router.process.client_port import url_of
from kvasir_router.process.components import RouterComponents
from kvasir_router.process.fleet_watch import FleetWatch
from kvasir_router.scaling.signals import SAMPLE_SECONDS
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.workers.control_channel import END, READY, TERM, Control
from kvasir_router.workers.gathered_stats import GATHER_SECONDS, GatheredStats
from kvasir_router.workers.process_metrics import publisher_families
from kvasir_router.workers.replication.event_log import EventLog, WatchedReplica
from kvasir_router.workers.replication.index_log import PublishedIndexLog
from kvasir_router.workers.replication.messages import (
    Learned,
    MetricsRequest,
    MetricsText,
    Poisoned,
    PolicyChanged,
    QueueReport,
    ReplicaSuspected,
    ResyncRequest,
    Routed,
    StatsReport,
    ToIndex,
    ToWorker,
)
from kvasir_router.workers.replication.publisher import BEAT_SECONDS, Publisher, WorkerLink
from kvasir_router.workers.replication.saved_state import SavedState, load_state, save_state
from kvasir_router.workers.replication.snapshot import discovered, whole_state
from kvasir_router.workers.shared_memory.load_table import MAX_REPLICAS, Others
from kvasir_router.workers.shared_memory.load_table_rows import LoadTableRows
from kvasir_router.workers.shared_memory.shared_replica import SharedModel
from kvasir_router.workers.shared_state import Shared
from kvasir_router.workers.whole_lines import WholeLines

_log = structlog.get_logger("kvasir_router.workers")

_LOOK_SECONDS = 0.05
_GROUP_SECONDS = 0.3
"""Within which the supervisor says that the whole router stops, if that is so."""
_BURIAL_SECONDS = 1.0
"""After a lost connection: then its process is gone, or connected again."""
_FRESH_SECONDS = 10.0
"""In which engines' events are replayed: until then what is not known may still be so."""


class IndexProcess(RouterComponents):
    """Own discovery, probes, feeds and the admin port; serve no client."""

    def __init__(self, shared: Shared, column: int) -> None:
        """`column`: its own in the load table, in which it only says that it lives."""
        quiet = replace(shared.settings, access_log=False, otlp_endpoint=None)
        super().__init__(quiet, run=shared.run)
        self._shared = shared
        self._watch = FleetWatch(self)
        self._tasks = self.gateway.tasks.child()
        self._publisher = Publisher(
            self._tasks, self._handle_message, self._worker_changed, self._state
        )
        self._log = EventLog(self._publisher.tell, PublishedIndexLog, self._watch.replay_events)
        self._rows = LoadTableRows(shared.load.is_unused)
        self._snapshot: Snapshot | None = None
        """None until discovery has spoken."""
        self._spoken = asyncio.Event()
        self._policies: dict[str, PolicySpec] = {}
        self._retold: list[Learned] = []
        """Texts that workers knew before this process did, while it is new."""
        self._column = column
        self._cells = shared.load.cells(column)
        self._others = Others(shared.load, column, self._others_have)
        self._replicas: dict[int, WatchedReplica] = {}
        self._gathering = GatheredStats(self.gateway, self._publisher)
        self._audit = audit = open_audit(quiet.audit_log, WholeLines(1), self.metrics)
        self._admin = AdminServer(self.gateway, self._gathering, self.spend, audit)
        self.metrics.register(partial(publisher_families, self._publisher))
        self.gateway.serves = False
        fleet = self.fleet
        fleet.make_model = self._make_model
        fleet.make_replica = self._make_replica
        self._feeds_follow_policy, fleet.policy_changed = fleet.policy_changed, self._policy_changed
        self._feeds_lose, fleet.went = fleet.went, self._went
        self._feeds_reseed, fleet.identity_changed = fleet.identity_changed, self._identity_changed

    async def run(self, control: Control) -> None:
        """Raise DiscoveryError or YamlFileError when the configuration is refused."""
        self.gateway.tasks.watch_loop()
        self._recall()
        await self.load_keys()
        await self._watch.start()
        tasks = self._tasks
        tasks.keep("workers' links", self._serve_workers, required=True)
        beats = self._publisher.send_heartbeats
        tasks.keep("heartbeat", beats, required=True, every=BEAT_SECONDS)
        tasks.keep("workers' load", self._look, required=True, every=_LOOK_SECONDS)
        tasks.keep("gathering", self._gathering.keep, every=GATHER_SECONDS)
        tasks.keep("scaling signals", self._gathering.sample, every=SAMPLE_SECONDS)
        self._admin.start(control.listener, tasks)
        control.say(READY)
        _log.info("index process listening", admin_url=url_of(control.listener))
        await self._until_the_end(control)
        await self._admin.stop()
        if self._audit is not None:
            await asyncio.to_thread(self._audit.close)
        await tasks.stop()
        await self._watch.stop()
        await self.close()
        _log.info("index process stopped")

    async def _serve_workers(self) -> None:
        """Take workers in, once discovery has spoken: what is not known yet, with an API server
        that does not answer, is not to take the place of what they know from a former process."""
        await self._spoken.wait()
        asyncio.get_running_loop().call_later(_FRESH_SECONDS, self._grown)
        await self._publisher.serve(self._shared.link_sock)

    async def _until_the_end(self, control: Control) -> None:
        """Outlive the workers when the whole router stops; who ends this process alone wants
        another one. A signal to the whole process group is the former."""
        word = await control.word()
        if word == TERM:
            try:
                async with asyncio.timeout(_GROUP_SECONDS):
                    word = await control.word()
            except TimeoutError:
                return
        while word != END:
            self.gateway.stopping = True
            word = await control.word()

    def apply(self, snapshot: Snapshot) -> None:
        """RouterComponents.apply, here and in the workers."""
        count = sum(len(spec.replicas) for spec in snapshot if isinstance(spec, ModelSpec))
        if count > MAX_REPLICAS // 2:
            message = f"{count} replicas are too many for a router with workers"
            if self._snapshot is None:
                raise DiscoveryError(f"{message}: {MAX_REPLICAS // 2} at most; use --workers 1")
            _log.error("what discovery says is left out", reason=message)
            return
        before = {model.name: model.spec.policy for model in self.fleet.models.values()}
        super().apply(snapshot)
        self._snapshot = snapshot
        for model in self.fleet.models.values():
            if before.get(model.name, model.spec.policy) != model.spec.policy:
                self._policies.pop(model.name, None)
            elif model.name not in before and model.name in self._policies:
                self.fleet.set_policy(model, self._policies[model.name])
        self._log.keep(self.fleet.models)
        for name in self._policies.keys() - self.fleet.models.keys():
            del self._policies[name]
        self._others.watch(max(self._replicas, default=-1) + 1)
        self._publisher.tell(discovered(self.fleet, snapshot))
        self._spoken.set()
        self._remember()

    # From workers

    def _handle_message(self, worker: WorkerLink, message: ToIndex) -> None:
        if isinstance(message, Routed):
            self._routed(message)
        elif isinstance(message, ReplicaSuspected):
            if message.slot in self._replicas:
                self._replicas[message.slot].request_probe()
        elif isinstance(message, QueueReport):
            self._gathering.waits[worker.pid] = message.by_model
        elif isinstance(message, StatsReport):
            self._gathering.told(worker.pid, message.numbers)
        elif isinstance(message, Learned):
            self._learned(message)
        elif isinstance(message, Poisoned):
            self._publisher.tell(message)
        elif isinstance(message, MetricsRequest):
            self._tasks.run("metrics", self._tell_metrics(worker, message.question))
        elif isinstance(message, ResyncRequest):
            worker.resync()

    def _routed(self, message: Routed) -> None:
        replica = self._replicas.get(message.slot)
        if replica is None:
            return
        self._publisher.tell(message)
        log = self._log.of(replica.model.name)
        if log is not None:
            log.apply(message, replica)

    def _learned(self, message: Learned) -> None:
        log = self._log.of(message.model)
        is_news = log is not None and log.learned_by_worker(message)
        if is_news and message.retold and self._publisher.fresh:
            self._retold.append(message)

    async def _tell_metrics(self, worker: WorkerLink, question: int) -> None:
        await self._gathering.gather()
        worker.tell(MetricsText(question, self._gathering.text()))

    def _worker_changed(self, worker: WorkerLink) -> None:
        workers = self._publisher.workers
        self.gateway.serves = bool(workers)
        if worker not in workers:
            self._gathering.left(worker.pid)
            asyncio.get_running_loop().call_later(_BURIAL_SECONDS, self._bury)

    def _bury(self) -> None:
        if self._gathering.bury():
            self._remember()

    # For them

    def _state(self) -> Iterator[list[ToWorker]]:
        return whole_state(self.fleet, self._log, self._snapshot, self._policies)

    def _recall(self) -> None:
        memory = load_state(self._shared.memory_path)
        self._rows.slots = memory.slots
        self._policies = memory.policies
        self._gathering.totals.past = memory.past

    def _remember(self) -> None:
        past = self._gathering.totals.past
        save_state(self._shared.memory_path, SavedState(self._rows.slots, self._policies, past))

    def _grown(self) -> None:
        self._publisher.fresh = False
        self._retold.clear()

    # The fleet

    def _make_model(self, spec: ModelSpec, policy: Policy, created: int) -> Model:
        model = SharedModel(spec, policy, created, self._others.refresh)
        self._log.follow(model)
        return model

    def _make_replica(
        self, model: Model, spec: ReplicaSpec, pool: ConnectionPool, most: int, queue: int
    ) -> Replica:
        slot = self._rows.allocate((model.name, spec.id, spec.host, spec.port))
        replica = WatchedReplica(
            spec, pool, most, model.refresh, queue, slot=slot, cells=self._cells
        )
        replica.tell, replica.model = self._publisher.tell, model
        self._replicas[slot] = replica
        return replica

    def _went(self, model: Model, replica: Replica) -> None:
        self._feeds_lose(model, replica)
        if isinstance(replica, WatchedReplica):
            spec = replica.spec
            self._rows.free((model.name, spec.id, spec.host, spec.port))
            del self._replicas[replica.slot]
        log = self._log.of(model.name)
        if log is not None:
            log.forget_replica(replica)

    def _identity_changed(self, model: Model) -> None:
        """Go by the engines' word of what they serve. The first one is no news to the workers: it
        is what their texts were hashed with."""
        self._feeds_reseed(model)
        log = self._log.of(model.name)
        for message in self._retold:
            if log is not None and message.model == model.name:
                log.learned_by_worker(message)

    def _policy_changed(self, model: Model) -> None:
        self._log.follow(model)
        spec = self._policies[model.name] = model.policy.spec
        self._publisher.tell(PolicyChanged(model.name, spec))
        self._feeds_follow_policy(model)
        self._remember()

    def _others_have(self, slot: int, in_flight: int, credit: int) -> None:
        if slot in self._replicas:
            self._replicas[slot].others_have(in_flight, credit)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._shared.load.beat(self._column)
            self._others.find()
            self._others.refresh()
