"""A request at a replica: what is counted for it, whoever carries its bytes.

One way for every request, whether the router relays it or tells a gateway where to send it:

    pick     `Candidates.choose`, in the turn that the queue gives: the model's policy chooses among
             the replicas that may take it, and nothing is changed
    started  `Assignment`: the request counts at the replica, and its prompt's credit is given
    began    its first byte has come: the credit is returned
    ended    it counts no more, at once and once, however it ended

Then its outcome goes to `RequestAccounting`, which tells policy, limits, shares, metrics and log.
"""

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health
from kvasir_router.proxy.failures.failure import Failure, Kind
from kvasir_router.wire.query import Query


class Assignment:
    """Counted by its replica from its making until `ended`, which every way out goes through."""

    def __init__(self, query: Query, model: Model, choice: Choice) -> None:
        """Start: the request goes to the chosen replica now."""
        model.sent(query, choice)
        replica = choice.replica
        self.choice = choice
        self.replica = replica
        self._counts = True
        self._credit = choice.new_tokens
        replica.acquire()
        replica.load.give(self._credit)

    @property
    def foreign(self) -> bool:
        """Return whether the replica is a server that is not of the fleet."""
        return self.replica.spec.upstream is not None

    def began(self) -> None:
        """Return the credit, once: the prompt is computed, or never will be here."""
        if self._credit:
            self.replica.load.take_back(self._credit)
            self._credit = 0

    def ended(self) -> None:
        """The replica has nothing to do with the request any more. Later calls do nothing."""
        if self._counts:
            self._counts = False
            self.began()
            self.replica.release()

    def note(self, failure: Failure) -> None:
        """Tell the replica what an answer of its says about it."""
        reason = failure.reason
        if self.foreign and failure.rest:
            self.replica.rest(failure.rest)
        if failure.kind is Kind.DEATH:
            self.replica.failed(reason, Health.SUSPECT)
        elif failure.kind in (Kind.LEAVING, Kind.HANDOVER) or (
            reason == "503" and not self.foreign
        ):
            self.replica.request_probe()
            if failure.kind is Kind.CHARGED:
                self.replica.faulty()
        elif reason != "429":
            self.replica.failed(reason)
        else:
            self.replica.faulty()
