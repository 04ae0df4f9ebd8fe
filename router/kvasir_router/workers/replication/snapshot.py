"""The whole state of the index process, in pieces, each as it is when it is asked for."""

from collections.abc import Iterator, Mapping

from kvasir_router.discovery.specs import CanarySpec, ModelSpec, PolicySpec, Snapshot
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.workers.replication.event_log import EventLog, loaded, observed
from kvasir_router.workers.replication.messages import (
    Discovered,
    Heard,
    Known,
    PolicyChanged,
    ToWorker,
)
from kvasir_router.workers.replication.model_log import slot_of
from kvasir_router.workers.shared_memory.shared_replica import SharedReplica


def whole_state(
    fleet: Fleet, log: EventLog, snapshot: Snapshot | None, policies: Mapping[str, PolicySpec]
) -> Iterator[list[ToWorker]]:
    """Return first what is needed to serve, then what the policies' sinks hold. `snapshot`: None as
    long as discovery has not spoken; `policies`: those set at run time."""
    yield [
        *([] if snapshot is None else [discovered(fleet, snapshot)]),
        *(PolicyChanged(model, policy) for model, policy in policies.items()),
        *(message for _, replica in fleet.replicas() for message in _of_replica(replica)),
        Known(),
    ]
    for model in list(fleet.models.values()):
        found = log.of(model.name)
        if found is not None:
            replicas = [each for each in model.replicas.values() if isinstance(each, SharedReplica)]
            yield from found.contents(replicas)


def discovered(fleet: Fleet, snapshot: Snapshot) -> Discovered:
    """Return all that exists, with every replica's slot."""
    return Discovered(
        [spec for spec in snapshot if isinstance(spec, ModelSpec)],
        [spec for spec in snapshot if isinstance(spec, CanarySpec)],
        {
            (model.name, *key): slot_of(replica)
            for model in fleet.models.values()
            for key, replica in model.replicas.items()
        },
        {model.name: model.created for model in fleet.models.values()},
    )


def _of_replica(replica: object) -> Iterator[ToWorker]:
    assert isinstance(replica, SharedReplica)  # noqa: S101 - the fleet makes no others
    if replica.ever_ready:
        yield Heard(replica.slot, replica.load_stream_state)
        yield observed(replica, replica.health)
    if replica.load.report is not None:
        yield loaded(replica, replica.load.report)
