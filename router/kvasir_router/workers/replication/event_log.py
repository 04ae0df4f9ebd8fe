"""Replicated event log: what the index process sees, and what workers do, told to the others."""

from collections.abc import Callable, Collection, Iterator

from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, LoadStreamState
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.workers.replication.index_log import IndexLog
from kvasir_router.workers.replication.messages import Heard, Loaded, Observed, ToWorker
from kvasir_router.workers.replication.model_log import ModelLog, SinkLog, Tell
from kvasir_router.workers.shared_memory.shared_replica import SharedModel, SharedReplica


class WatchedReplica(SharedReplica):
    """The index process's replica: what is seen of it is told to the workers."""

    model: Model
    tell: Tell

    def observed(self, health: Health) -> None:
        """Replica.observed."""
        super().observed(health)
        self.tell(observed(self, health))

    def heard(self, load_stream_state: LoadStreamState) -> None:
        """Replica.heard."""
        changed = load_stream_state is not self.load_stream_state
        super().heard(load_stream_state)
        if changed:
            self.tell(Heard(self.slot, load_stream_state))

    def _load_heard(self, report: LoadReport) -> None:
        super()._load_heard(report)
        self.tell(loaded(self, report))


class EventLog:
    """Logs of all models whose policy has a sink, the same in the index process and the workers."""

    def __init__(
        self,
        tell: Tell,
        index_log: Callable[[str, ModelIndex, Tell], IndexLog],
        replay: Callable[[Model], None] = lambda model: None,
    ) -> None:
        """`replay` has engines tell a model's sink anew what is in their caches."""
        self._tell = tell
        self._index_log = index_log
        self._replay = replay
        self._logs: dict[str, ModelLog] = {}

    def follow(self, model: Model) -> None:
        """Begin the log of the sink that the model's policy has now."""
        assert isinstance(model, SharedModel)  # noqa: S101 - the fleet makes no others
        sink, log = model.policy.sink, self._logs.get(model.name)
        if sink is None:
            self._logs.pop(model.name, None)
            model.entry = None
            return
        if log is None or log.sink is not sink:
            if isinstance(sink, ModelIndex):
                log = self._index_log(model.name, sink, self._tell)
            else:
                log = SinkLog(model.name, sink, self._tell, lambda: self._replay(model))
            self._logs[model.name] = log
        model.entry = log.entry

    def keep(self, models: Collection[str]) -> None:
        """Drop the logs of all other models."""
        for name in self._logs.keys() - set(models):
            del self._logs[name]

    def of(self, model: str) -> ModelLog | None:
        """Return a model's log; None if its policy has no sink."""
        return self._logs.get(model)

    def all(self) -> Iterator[ModelLog]:
        """Return the logs that there are now."""
        return iter([*self._logs.values()])


def observed(replica: SharedReplica, health: Health) -> ToWorker:
    """Return a probe's verdict as a message."""
    return Observed(replica.slot, health, replica.max_model_len, replica.serves)


def loaded(replica: SharedReplica, report: LoadReport) -> ToWorker:
    """Return a report of load as a message."""
    load = replica.load
    return Loaded(replica.slot, report, load.report_every, load.kv_capacity)
