"""The whole state of the index process, in pieces, each as it is when it is asked for."""

from collections.abc import Iterable, Iterator, Mapping

from kvasir_router.discovery.specs import CanarySpec, ModelSpec, PolicySpec, Snapshot
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.model import Model
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.workers.replication.event_log import loaded, observed, slot_of, texts_of
from kvasir_router.workers.replication.messages import (
    Cleared,
    Discovered,
    Heard,
    Held,
    Known,
    PolicyChanged,
    Remembered,
    ReplicaRow,
    ToWorker,
    pack_keys,
    pack_texts,
    unpack_keys,
)
from kvasir_router.workers.shared_memory.shared_replica import SharedReplica


def whole_state(
    fleet: Fleet, snapshot: Snapshot | None, policies: Mapping[str, PolicySpec]
) -> Iterator[list[ToWorker]]:
    """First what is needed to serve, then the indexes. `snapshot`: None as long as discovery has
    not spoken; `policies`: those set at run time."""
    yield [
        *([] if snapshot is None else [discovered(fleet, snapshot)]),
        *(PolicyChanged(model, policy) for model, policy in policies.items()),
        *(message for _, replica in fleet.replicas() for message in _of_replica(replica)),
        Known(),
    ]
    for model in list(fleet.models.values()):
        policy = model.policy
        if isinstance(policy, KvAware):
            yield from _of_index(model, policy.index)


def discovered(fleet: Fleet, snapshot: Snapshot) -> Discovered:
    """What exists, with every replica's slot."""
    return Discovered(
        [spec for spec in snapshot if isinstance(spec, ModelSpec)],
        [spec for spec in snapshot if isinstance(spec, CanarySpec)],
        [
            ReplicaRow(model.name, *key, slot_of(replica))
            for model in fleet.models.values()
            for key, replica in model.replicas.items()
        ],
        {model.name: model.created for model in fleet.models.values()},
    )


def _of_replica(replica: object) -> Iterator[ToWorker]:
    assert isinstance(replica, SharedReplica)  # noqa: S101 - the fleet makes no others
    if replica.ever_ready:
        yield Heard(replica.slot, replica.load_stream_state)
        yield observed(replica, replica.health)
    if replica.load.report is not None:
        yield loaded(replica, replica.load.report)


def _of_index(model: Model, index: ModelIndex) -> Iterator[list[ToWorker]]:
    for replica in list(model.replicas.values()):
        contents = index.approximate.contents(replica)
        if contents:
            blocks, at, sizes = zip(*contents, strict=True)
            yield [Remembered(slot_of(replica), pack_texts(blocks), list(at), list(sizes))]
    for replica in list(model.replicas.values()):
        if index.residency.knows(replica):
            yield [Cleared(slot_of(replica))]
    for message in texts_of(model.name, index):
        yield [message, *_held(index, filter(None, unpack_keys(message.kv_hashes)))]


def _held(index: ModelIndex, keys: Iterable[int]) -> Iterator[Held]:
    size = index.residency.block_size
    for (replica, group, tier), held in index.residency.holders(keys).items():
        yield Held(slot_of(replica), group, tier, size, pack_keys(held))
