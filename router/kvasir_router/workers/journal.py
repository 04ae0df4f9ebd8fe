"""What the index process sees, passed on to the workers as it happens."""

from collections.abc import Sequence
from functools import partial

from kvasir_router.feeds.sink import PromptReport
from kvasir_router.fleet.load import LoadReport
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, Replica, Speech
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.workers.hub import Hub
from kvasir_router.workers.messages import (
    BLOCKS_A_MESSAGE,
    Cleared,
    Dropped,
    Heard,
    Held,
    Learned,
    Loaded,
    Observed,
    ToWorker,
    pack_keys,
    pack_texts,
)
from kvasir_router.workers.shared_replica import SharedReplica


class WatchedReplica(SharedReplica):
    """The index process's replica: what is seen of it is news."""

    journal: "Journal"
    model: Model

    def observed(self, health: Health) -> None:
        """Replica.observed."""
        super().observed(health)
        self.journal.observed(self, health)

    def heard(self, speech: Speech) -> None:
        """Replica.heard."""
        changed = speech is not self.speech
        super().heard(speech)
        if changed:
            self.journal.tell(Heard(self.slot, speech))

    def _load_heard(self, report: LoadReport) -> None:
        super()._load_heard(report)
        self.journal.tell(loaded(self, report))


class Journal:
    """A BlockJournal of every model's index, and of the replicas."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.tell = hub.tell

    def follow(self, model: Model) -> None:
        """Pass on what comes to the model's index, if its policy has one."""
        if isinstance(model.policy, KvAware):
            index = model.policy.index
            index.residency.journal = self
            index.when_learned = partial(self._learned, model.name)

    def observed(self, replica: SharedReplica, health: Health) -> None:
        """A probe's verdict."""
        self.tell(observed(replica, health))

    def held(
        self, replica: Replica, group: int, tier: str, block_size: int, keys: Sequence[int]
    ) -> None:
        """BlockJournal.held."""
        slot = slot_of(replica)
        for part in parts(keys):
            self.tell(Held(slot, group, tier, block_size, pack_keys(part)), len(part))

    def dropped(self, replica: Replica, group: int, tier: str, keys: Sequence[int]) -> None:
        """BlockJournal.dropped."""
        slot = slot_of(replica)
        for part in parts(keys):
            self.tell(Dropped(slot, group, tier, pack_keys(part)), len(part))

    def cleared(self, replica: Replica) -> None:
        """BlockJournal.cleared."""
        self.tell(Cleared(slot_of(replica)))

    def _learned(self, model: str, report: PromptReport) -> None:
        self._hub.tell(learned(model, report), len(report.text_hashes))


def slot_of(replica: Replica) -> int:
    """All replicas of a router with workers have one."""
    assert isinstance(replica, SharedReplica)  # noqa: S101 - the fleet makes no others
    return replica.slot


def parts(keys: Sequence[int]) -> list[Sequence[int]]:
    """No longer than one message's."""
    return [keys[at : at + BLOCKS_A_MESSAGE] for at in range(0, len(keys), BLOCKS_A_MESSAGE)]


def observed(replica: SharedReplica, health: Health) -> ToWorker:
    """A probe's verdict as a message."""
    return Observed(replica.slot, health, replica.max_model_len, replica.serves)


def loaded(replica: SharedReplica, report: LoadReport) -> ToWorker:
    """A report of load as a message."""
    load = replica.load
    return Loaded(replica.slot, report, load.report_every, load.kv_capacity)


def learned(model: str, report: PromptReport) -> Learned:
    """A prompt report as a message."""
    return Learned(model, pack_texts(report.text_hashes), list(report.kv_blocks), report.kv_hashes)
