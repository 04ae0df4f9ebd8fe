"""Fleet and policies' sinks of a worker, kept as the index process tells."""

from collections.abc import Callable
from functools import partial

from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.process.components import RouterComponents
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.workers.replication.event_log import EventLog
from kvasir_router.workers.replication.index_log import WorkerIndexLog
from kvasir_router.workers.replication.messages import (
    Cleared,
    Complete,
    Discovered,
    Dropped,
    EngineEvent,
    Heard,
    Held,
    Learned,
    Loaded,
    Observed,
    Poisoned,
    PolicyChanged,
    Remembered,
    ReplicaSuspected,
    ResyncRequest,
    Routed,
    ToIndex,
    ToWorker,
    Welcome,
)
from kvasir_router.workers.shared_memory.load_table import LoadTable, Others
from kvasir_router.workers.shared_memory.shared_replica import SharedModel, SharedReplica

_SinkEvent = Held | Dropped | Cleared | EngineEvent | Remembered | Routed


class ReplicaState:
    """State of a worker, to which messages are applied in their order."""

    def __init__(
        self,
        router: RouterComponents,
        table: LoadTable,
        column: int,
        tell: Callable[[ToIndex], None],
    ) -> None:
        """`tell` is called with what the index process is to know."""
        self._router = router
        self._column = column
        self._tell = tell
        self._cells = table.cells(column)
        self._slots: dict[tuple[str, str, str, int], int] = {}
        self._replicas: dict[int, tuple[Model, SharedReplica]] = {}
        self._unconfirmed: set[int] = set()
        """Slots of which the blocks are those of an earlier telling."""
        self._forgotten: set[int] = set()
        """Slots of replicas that went down here, and not (yet) in the index process."""
        self._fresh = False
        self.others = Others(table, column, self._others_have)
        self.log = EventLog(
            lambda message, blocks=0: tell(message), partial(WorkerIndexLog, column=column)
        )
        fleet = router.fleet
        fleet.policy_changed = self.log.follow
        fleet.make_model = self._make_model
        fleet.make_replica = self._make_replica
        fleet.emptied = self._emptied
        self._handlers = {
            Welcome: self._welcome,
            Discovered: self._discovered,
            PolicyChanged: self._policy_is,
            Observed: self._observed,
            Heard: self._heard,
            Loaded: self._loaded,
            Held: self._blocks,
            Dropped: self._blocks,
            EngineEvent: self._blocks,
            Cleared: self._cleared,
            Learned: self._learned,
            Remembered: self._sink_event,
            Routed: self._routed,
            Poisoned: self._poisoned,
            Complete: self._complete,
        }

    @property
    def replicas(self) -> list[tuple[Model, SharedReplica]]:
        return list(self._replicas.values())

    @property
    def teaches(self) -> bool:
        """True if the index process is so new that it knows less than this one does."""
        return self._fresh

    def apply_message(self, message: ToWorker) -> None:
        """Apply one message; those that are not about the fleet are for others."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)  # type: ignore[operator]

    # What exists

    def _welcome(self, message: Welcome) -> None:
        self._fresh = message.fresh
        self._unconfirmed = set(self._replicas)

    def _complete(self, message: Complete) -> None:
        """Drop what the new snapshot did not contain, unless it is still incomplete."""
        if not self._fresh:
            for slot in list(self._unconfirmed):
                self._confirm(slot)

    def _discovered(self, message: Discovered) -> None:
        self._slots = message.slots
        fleet = self._router.fleet
        self._router.apply(message.snapshot)
        self.log.keep(fleet.models)
        self._replicas = {}
        for model in fleet.models.values():
            model.created = message.created.get(model.name, model.created)
            for replica in model.replicas.values():
                if isinstance(replica, SharedReplica):
                    self._replicas[replica.slot] = model, replica
        self._unconfirmed &= self._replicas.keys()
        self.others.watch(max(self._replicas, default=-1) + 1)

    def _policy_is(self, message: PolicyChanged) -> None:
        model = self._router.fleet.models.get(message.model)
        if model is not None and model.policy.spec != message.policy:
            self._router.fleet.set_policy(model, message.policy)

    # How replicas do

    def _observed(self, message: Observed) -> None:
        slot, health = message.slot, message.health
        _, replica = self._replicas.get(slot, (None, None))
        if replica is None:
            return
        replica.max_model_len = message.max_model_len
        replica.serves = message.serves
        if health is Health.READY and slot in self._forgotten:
            self._forgotten.discard(slot)
            self._tell(ResyncRequest())  # it was never down: what was forgotten of it is still so
        replica.observed(health)
        if health is Health.DOWN:
            self._forgotten.discard(slot)

    def _heard(self, message: Heard) -> None:
        if message.slot in self._replicas:
            self._replicas[message.slot][1].heard(message.load_stream_state)

    def _loaded(self, message: Loaded) -> None:
        if message.slot in self._replicas:
            load = self._replicas[message.slot][1].load
            load.report_every = message.report_every
            load.kv_capacity = message.kv_capacity
            load.reported(message.report)

    # What their policies' sinks hold

    def _blocks(self, message: Held | Dropped | EngineEvent) -> None:
        self._confirm(message.slot)
        self._sink_event(message)

    def _cleared(self, message: Cleared) -> None:
        self._unconfirmed.discard(message.slot)
        self._sink_event(message)

    def _sink_event(self, message: _SinkEvent) -> None:
        model, replica = self._replicas.get(message.slot, (None, None))
        log = self.log.of(model.name) if model is not None else None
        if log is not None:
            log.apply(message, replica)

    def _learned(self, message: Learned) -> None:
        log = self.log.of(message.model)
        if log is not None:
            log.apply(message, None)

    def _routed(self, message: Routed) -> None:
        if message.column != self._column:
            self._sink_event(message)

    def _poisoned(self, message: Poisoned) -> None:
        self._router.gateway.poison.add_digest(message.digest)

    def _confirm(self, slot: int) -> None:
        """Forget a replica's blocks of the earlier telling, at the first of this one."""
        if slot in self._unconfirmed:
            self._unconfirmed.discard(slot)
            model, replica = self._replicas.get(slot, (None, None))
            log = self.log.of(model.name) if model is not None else None
            if log is not None and replica is not None:
                log.begin_replica(replica)

    # For the fleet

    def _make_model(self, spec: ModelSpec, policy: Policy, created: int) -> Model:
        model = SharedModel(spec, policy, created, self.others.refresh)
        self.log.follow(model)
        return model

    def _make_replica(
        self, model: Model, spec: ReplicaSpec, pool: ConnectionPool, most: int, queue: int
    ) -> Replica:
        slot = self._slots[model.name, spec.id, spec.host, spec.port]
        replica = SharedReplica(
            spec, pool, most, model.refresh, queue, slot=slot, cells=self._cells
        )
        replica.asked_for_probe = lambda replica: self._tell(ReplicaSuspected(replica.slot))
        return replica

    def _emptied(self, model: Model, replica: Replica) -> None:
        """Its process has ended."""
        replica.load.lost()
        if isinstance(replica, SharedReplica):
            self._forgotten.add(replica.slot)

    def _others_have(self, slot: int, in_flight: int, credit: int) -> None:
        if slot in self._replicas:
            self._replicas[slot][1].others_have(in_flight, credit)
