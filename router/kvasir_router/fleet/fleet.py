"""All models, found by name or alias, kept as the discovery source says."""

import time
from collections.abc import Callable, Iterator

import structlog

from kvasir_router.discovery.base import ModelSpec, ReplicaSpec, Snapshot
from kvasir_router.fleet.model import Model, ReplicaKey
from kvasir_router.fleet.replica import Replica
from kvasir_router.policy.base import Policy
from kvasir_router.proxy.pool import ConnectionPool

_log = structlog.get_logger("kvasir_router.fleet")


class Fleet:
    """The table of models. `came` and `went` are called for each replica."""

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        make_pool: Callable[[str, int], ConnectionPool],
        max_in_flight: int,
    ) -> None:
        self.models: dict[str, Model] = {}
        self._names: dict[str, Model] = {}
        self._make_policy = make_policy
        self._make_pool = make_pool
        self._max_in_flight = max_in_flight
        self.came: Callable[[Model, Replica], None] = lambda model, replica: None
        self.went: Callable[[Model, Replica], None] = lambda model, replica: None

    @property
    def ready(self) -> bool:
        """Whether at least one model has a ready replica."""
        return any(model.ready for model in self.models.values())

    def find(self, name: str) -> Model | None:
        """The model with this name or alias."""
        return self._names.get(name)

    def names(self) -> list[str]:
        """Every name and alias, in the source's order."""
        return list(self._names)

    def replicas(self) -> Iterator[tuple[Model, Replica]]:
        for model in self.models.values():
            for replica in model.replicas.values():
                yield model, replica

    def apply(self, snapshot: Snapshot) -> None:
        """Become what the snapshot says. A replica that is in both keeps its state; one that is
        gone gets no new request, and what it has in flight ends undisturbed."""
        names = {spec.name for spec in snapshot}
        for model in [model for name, model in self.models.items() if name not in names]:
            self._apply_model(model, ModelSpec(model.name))
        old = self.models
        self.models = {}
        self._names = {}
        for spec in snapshot:
            model = old.get(spec.name) or Model(spec, self._make_policy(), int(time.time()))
            self.models[spec.name] = model
            for name in (spec.name, *spec.aliases):
                self._names[name] = model
            self._apply_model(model, spec)

    def _apply_model(self, model: Model, spec: ModelSpec) -> None:
        model.spec = spec
        wanted = {_key(replica): replica for replica in spec.replicas}
        for key in [key for key in model.replicas if key not in wanted]:
            self._remove(model, key)
        for key, replica_spec in wanted.items():
            if key in model.replicas:
                model.replicas[key].draining = replica_spec.draining
            else:
                self._add(model, key, replica_spec)
        model.refresh()

    def _add(self, model: Model, key: ReplicaKey, spec: ReplicaSpec) -> None:
        pool = self._make_pool(spec.host, spec.port)
        replica = Replica(spec, pool, self._max_in_flight, model.refresh)
        model.replicas[key] = replica
        self.came(model, replica)
        _log.info("replica found", model=model.name, replica=spec.id, address=pool.authority)

    def _remove(self, model: Model, key: ReplicaKey) -> None:
        replica = model.replicas.pop(key)
        replica.draining = True
        replica.pool.close()
        self.went(model, replica)
        _log.info("replica gone", model=model.name, replica=replica.id, in_flight=replica.in_flight)


def _key(spec: ReplicaSpec) -> ReplicaKey:
    return spec.id, spec.host, spec.port
