"""Choice of the replica that one request goes to next."""

from collections.abc import Callable, Sequence

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model, PolicyError
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.migration import choose_alike
from kvasir_router.wire.query import Query

_NOWHERE: frozenset[str] = frozenset()


class Candidates:
    """Replicas of a model that may get one request yet, by what it has met with so far.

    A choice is None when none may take it now, or when the policy raised (`policy_failed`).
    """

    def __init__(self, query: Query, model: Model) -> None:
        self._query = query
        self._model = model
        self._tried: list[Replica] = []
        self._faulty: list[Replica] = []
        """Replicas that answered badly or not at all: not asked again, also not after a wait."""
        self._ended_at = _NOWHERE
        """Nodes where a replica ended with the request: a node may end with all of its own."""
        self.broken: Replica | None = None
        """Replica whose broken stream is being migrated."""
        self.policy_failed = False
        """Set when there is no choice because the policy raised."""

    @property
    def limited(self) -> bool:
        """Return whether only some replicas can take it: a started stream goes to equal ones, what
        failed at one to another one."""
        return self.broken is not None or len(self._faulty) > 0

    @property
    def another_serves(self) -> bool:
        """Return whether one that was not asked serves, though it may be full now."""
        return self._model.serves_beside(self._tried, self._query.lora)

    # What the request meets with

    def asked(self, replica: Replica) -> None:
        """Take note that the request goes to the replica."""
        self._tried.append(replica)

    def forget_tried(self) -> None:
        """The request waits: what was gone may have come back by its turn."""
        self._tried = self._faulty.copy()

    def faulted(self, replica: Replica) -> None:
        """Take note of a fault of the replica's own."""
        self._faulty.append(replica)

    def died(self, replica: Replica) -> None:
        """Take note that the replica ended with the request."""
        if replica.spec.node:
            self._ended_at |= {replica.spec.node}

    def adopted(self, replica: Replica) -> None:
        """The stream goes on at the replica; the others may be asked again, should it break."""
        self._tried = [replica]
        self.broken = None

    # Choices

    def choose(self) -> Choice | None:
        """Choose for a request of whose answer the client has nothing."""
        if self._ended_at:
            return self._elsewhere(lambda tried: self._model.choose(self._query, tried))
        self.policy_failed = False
        try:
            return self._model.choose(self._query, self._tried)
        except PolicyError:
            self.policy_failed = True
            return None

    def choose_alike(self, replica: Replica) -> Choice | None:
        """Choose for the rest of a stream that `replica` began."""
        return self._elsewhere(lambda tried: choose_alike(self._query, self._model, replica, tried))

    def choose_next(self) -> Choice | None:
        """Choose for the request as it stands."""
        return self.choose() if self.broken is None else self.choose_alike(self.broken)

    def _elsewhere(self, choose: Callable[[Sequence[Replica]], Choice | None]) -> Choice | None:
        """Choose on another node than where a replica ended, or else on any."""
        nodes = self._ended_at
        beside = [each for each in self._model.replicas.values() if each.spec.node in nodes]
        self.policy_failed = False
        try:
            choice = choose([*self._tried, *beside]) if beside else None
            return choice or choose(self._tried)
        except PolicyError:
            self.policy_failed = True
            return None
