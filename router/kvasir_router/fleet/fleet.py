"""All models, found by any of their names, kept as the discovery source says."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import structlog

from kvasir_router.discovery.specs import (
    CanarySpec,
    Departure,
    ModelSpec,
    PolicySpec,
    ReplicaSpec,
    Snapshot,
)
from kvasir_router.fleet.model import Model, ReplicaKey
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Replica
from kvasir_router.fleet.target import Canary, Target
from kvasir_router.wire.upstream_pool import ConnectionPool

_log = structlog.get_logger("kvasir_router.fleet")

ReplicaMaker = Callable[[Model, ReplicaSpec, ConnectionPool, int, int], Replica]
"""From model, spec, pool, the most requests in flight, and those that may wait in the engine."""


class Fleet:
    """The table of models. `came` and `went` are called for each replica, `emptied` for one whose
    process has ended, `policy_changed` for a model with a new one, `identity_changed` for one
    whose engines say that they serve something else, `room` for a model that may take requests
    again. `awake_since` is asked for `ReplicaLoad.awake_since`."""

    def __init__(
        self,
        make_policy: Callable[[PolicySpec | None], Policy],
        make_pool: Callable[[ReplicaSpec], ConnectionPool],
        max_in_flight: int,
        engine_queue: int = 0,
    ) -> None:
        """`make_policy` returns a new policy, the router's own for None; it raises ValueError for
        one that cannot be made."""
        self.models: dict[str, Model] = {}
        self._names: dict[str, Target | Canary] = {}
        self._make_policy = make_policy
        self._make_pool = make_pool
        self._max_in_flight = max_in_flight
        self._engine_queue = engine_queue
        self.came: Callable[[Model, Replica], None] = lambda model, replica: None
        self.went: Callable[[Model, Replica], None] = lambda model, replica: None
        self.emptied: Callable[[Model, Replica], None] = lambda model, replica: None
        self.policy_changed: Callable[[Model], None] = lambda model: None
        self.identity_changed: Callable[[Model], None] = lambda model: None
        self.room: Callable[[Model], None] = lambda model: None
        self.policy_raised: Callable[[], None] = lambda: None
        self.awake_since: Callable[[], float] = lambda: 0.0
        self.make_model: Callable[[ModelSpec, Policy, int], Model] = Model
        self.make_replica: ReplicaMaker = _make_replica

    @property
    def ready(self) -> bool:
        """True if at least one model has a ready replica."""
        return any(model.ready for model in self.models.values())

    def find(self, name: str, key: str | None = None) -> Target | None:
        """Return what the name stands for; of a canary's models the one for `key`, or any."""
        found = self._names.get(name)
        return found.pick(key) if isinstance(found, Canary) else found

    def names(self) -> list[str]:
        """Every name, alias, adapter and canary."""
        return list(self._names)

    def replicas(self) -> Iterator[tuple[Model, Replica]]:
        for model in self.models.values():
            for replica in model.replicas.values():
                yield model, replica

    def apply(self, snapshot: Snapshot) -> None:
        """Become what the snapshot says. A replica that is in both keeps its state; one that is
        gone gets no new request, and what it has in flight ends undisturbed."""
        specs = {spec.name: spec for spec in snapshot if isinstance(spec, ModelSpec)}
        for name in [name for name in self.models if name not in specs]:
            self._apply_model(self.models[name], ModelSpec(name))
        self.models = {name: self._model(spec) for name, spec in specs.items()}
        for name, spec in specs.items():
            self._apply_model(self.models[name], spec)
        self._names = {}
        for spec in specs.values():
            model = self.models[spec.name]
            self._names |= dict.fromkeys((spec.name, *spec.aliases), Target(model))
            self._names |= {adapter: Target(model, adapter) for adapter in spec.adapters}
        for each in snapshot:
            if isinstance(each, CanarySpec):
                split = [(self.models[name], weight) for name, weight in each.split]
                self._names[each.name] = Canary(split)

    def _model(self, spec: ModelSpec) -> Model:
        """The one there is, with the spec's policy, or a new one."""
        model = self.models.get(spec.name)
        if model is None:
            made = self.make_model(spec, self._make_policy(spec.policy), int(time.time()))
            made.room = lambda: self.room(made)
            made.policy_raised = self.policy_raised
            made.identity_changed = lambda: self.identity_changed(made)
            return made
        if spec.policy != model.spec.policy:
            self.set_policy(model, spec.policy)
        return model

    def set_policy(self, model: Model, spec: PolicySpec | None) -> None:
        """Give the model another policy, until the source names one that it did not before.
        Raises ValueError."""
        model.policy = self._make_policy(spec)
        self.policy_changed(model)
        _log.info("policy changed", model=model.name, policy=model.policy.spec.name)

    def _apply_model(self, model: Model, spec: ModelSpec) -> None:
        model.set_spec(spec)
        wanted = {_key(replica): replica for replica in spec.replicas}
        for key, replica in list(model.replicas.items()):
            if key not in wanted or not _same_engine(replica.spec, wanted[key]):
                self._remove(model, key)
        changed = []
        for key, replica_spec in wanted.items():
            if key not in model.replicas:
                self._add(model, key, replica_spec)
                continue
            replica = model.replicas[key]
            replica.draining = replica_spec.draining
            replica.adapters = replica_spec.adapters
            if replica.told_departure is not replica_spec.departure:
                replica.told_departure = replica_spec.departure
                changed.append(replica)
        model.refresh()
        # Not before: a stream that moves must not choose another replica that leaves
        for replica in changed:
            replica.give_streams_away()

    def _add(self, model: Model, key: ReplicaKey, spec: ReplicaSpec) -> None:
        pool = self._make_pool(spec)
        replica = self.make_replica(model, spec, pool, self._max_in_flight, self._engine_queue)
        replica.filled = model.refill
        replica.faulty = lambda: model.replica_failed(replica)
        replica.emptied = lambda: self._emptied(model, replica)
        replica.load.awake_since = self.awake_since
        model.replicas[key] = replica
        self.came(model, replica)
        _log.info("replica found", model=model.name, replica=spec.id, address=pool.authority)

    def _remove(self, model: Model, key: ReplicaKey) -> None:
        replica = model.replicas.pop(key)
        replica.draining = True
        replica.pool.close()
        model.forget_replica(replica)
        self.went(model, replica)
        _log.info("replica gone", model=model.name, replica=replica.id, in_flight=replica.in_flight)

    def _emptied(self, model: Model, replica: Replica) -> None:
        model.forget_replica(replica)
        self.emptied(model, replica)


def _make_replica(
    model: Model, spec: ReplicaSpec, pool: ConnectionPool, max_in_flight: int, engine_queue: int
) -> Replica:
    return Replica(spec, pool, max_in_flight, model.refresh, engine_queue)


def _key(spec: ReplicaSpec) -> ReplicaKey:
    return spec.id, spec.host, spec.port


def _same_engine(one: ReplicaSpec, other: ReplicaSpec) -> bool:
    """Return True if they differ in nothing but how they end and what adapters they hold."""
    return _lasting(one) == _lasting(other)


def _lasting(spec: ReplicaSpec) -> ReplicaSpec:
    return replace(spec, draining=False, departure=Departure.NONE, adapters=None)
