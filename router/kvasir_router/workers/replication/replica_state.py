"""A worker's fleet and indexes, kept as the index process tells."""

from collections.abc import Callable

from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.process.components import RouterComponents
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.workers.replication.event_log import report_of
from kvasir_router.workers.replication.messages import (
    Cleared,
    Complete,
    Discovered,
    Dropped,
    Heard,
    Held,
    Learned,
    Loaded,
    Observed,
    Poisoned,
    PolicyChanged,
    Remembered,
    Routed,
    ToWorker,
    Welcome,
    unpack_keys,
    unpack_texts,
)
from kvasir_router.workers.shared_memory.load_table import LoadTable, Others
from kvasir_router.workers.shared_memory.shared_replica import SharedModel, SharedReplica


class ReplicaState:
    """Applies messages, in their order. `missed` is called when it needs the whole state anew."""

    def __init__(self, router: RouterComponents, table: LoadTable, column: int) -> None:
        self._router = router
        self._column = column
        self._cells = table.cells(column)
        self._slots: dict[tuple[str, str, str, int], int] = {}
        self._replicas: dict[int, tuple[Model, SharedReplica]] = {}
        self._unconfirmed: set[int] = set()
        """Slots of which the blocks are those of an earlier telling."""
        self._forgotten: set[int] = set()
        """Slots of replicas that went down here, and not (yet) in the index process."""
        self._fresh = False
        self.others = Others(table, column, self._others_have)
        self.missed: Callable[[], None] = lambda: None
        self.doubted: Callable[[SharedReplica], None] = lambda replica: None
        """Told of a replica that failed here."""
        fleet = router.fleet
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
            Held: self._held,
            Dropped: self._dropped,
            Cleared: self._cleared,
            Learned: self._learned,
            Remembered: self._remembered,
            Routed: self._routed,
            Poisoned: self._poisoned,
            Complete: self._complete,
        }

    @property
    def replicas(self) -> list[tuple[Model, SharedReplica]]:
        return list(self._replicas.values())

    @property
    def teaches(self) -> bool:
        """Whether the index process is so new that it knows less than this one does."""
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
        self._slots = {(p.model, p.id, p.host, p.port): p.slot for p in message.places}
        fleet = self._router.fleet
        self._router.apply(message.snapshot)
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
            self.missed()  # it was never down: what was forgotten of it is still so
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

    # What is in their caches

    def _held(self, message: Held) -> None:
        self._confirm(message.slot)
        index, replica = self._index(message.slot)
        if index is not None and replica is not None:
            keys = unpack_keys(message.keys)
            index.residency.hold(replica, message.group, message.tier, message.block_size, keys)

    def _dropped(self, message: Dropped) -> None:
        self._confirm(message.slot)
        index, replica = self._index(message.slot)
        if index is not None and replica is not None:
            keys = unpack_keys(message.keys)
            index.residency.drop(replica, message.group, message.tier, keys)

    def _cleared(self, message: Cleared) -> None:
        self._unconfirmed.discard(message.slot)
        index, replica = self._index(message.slot)
        if index is not None and replica is not None:
            index.residency.cleared(replica)

    def _learned(self, message: Learned) -> None:
        model = self._router.fleet.models.get(message.model)
        if model is not None and isinstance(model.policy, KvAware):
            model.policy.index.texts.learn(report_of(message))

    def _remembered(self, message: Remembered) -> None:
        index, replica = self._index(message.slot)
        if index is not None and replica is not None:
            texts = unpack_texts(message.texts)
            contents = zip(texts, message.at, message.sizes, strict=True)
            index.approximate.restore(replica, contents)

    def _routed(self, message: Routed) -> None:
        if message.column == self._column:
            return
        index, replica = self._index(message.slot)
        if index is not None and replica is not None:
            chain, capacity = unpack_texts(message.texts), replica.load.kv_capacity
            index.approximate.routed(chain, replica, message.known, capacity)

    def _poisoned(self, message: Poisoned) -> None:
        self._router.gateway.poison.add_digest(message.digest)

    def _confirm(self, slot: int) -> None:
        """What is told now of its blocks is all there is."""
        if slot in self._unconfirmed:
            self._unconfirmed.discard(slot)
            index, replica = self._index(slot)
            if index is not None and replica is not None:
                index.residency.forget(replica)

    def _index(self, slot: int) -> tuple[ModelIndex | None, SharedReplica | None]:
        model, replica = self._replicas.get(slot, (None, None))
        if model is None or not isinstance(model.policy, KvAware):
            return None, replica
        return model.policy.index, replica

    # For the fleet

    def _make_model(self, spec: ModelSpec, policy: Policy, created: int) -> Model:
        return SharedModel(spec, policy, created, self.others.refresh)

    def _make_replica(
        self, model: Model, spec: ReplicaSpec, pool: ConnectionPool, most: int, queue: int
    ) -> Replica:
        slot = self._slots[model.name, spec.id, spec.host, spec.port]
        replica = SharedReplica(
            spec, pool, most, model.refresh, queue, slot=slot, cells=self._cells
        )
        replica.asked_for_probe = lambda replica: self.doubted(replica)
        return replica

    def _emptied(self, model: Model, replica: Replica) -> None:
        """Its process has ended."""
        replica.load.lost()
        if isinstance(replica, SharedReplica):
            self._forgotten.add(replica.slot)

    def _others_have(self, slot: int, in_flight: int, credit: int) -> None:
        if slot in self._replicas:
            self._replicas[slot][1].others_have(in_flight, credit)
