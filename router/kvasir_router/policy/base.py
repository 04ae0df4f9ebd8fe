"""Base of policies that keep no record of requests."""

from collections.abc import Sequence

from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.policy import Score
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage


class LoadPolicy:
    """Policy without an index; a subclass defines `choose`, and what else it needs."""

    spec = PolicySpec("")
    sink: BlockSink | None = None

    def sent(self, query: Query, choice: Choice) -> None:
        """Policy.sent."""

    def ended(self, query: Query, choice: Choice, usage: Usage | None) -> None:
        """Policy.ended."""

    def forget_replica(self, replica: Replica) -> None:
        """Policy.forget_replica."""

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        """Policy.choose."""
        raise NotImplementedError

    def explain(self, query: Query, candidates: Sequence[Replica]) -> list[Score]:
        """Policy.explain: the cost is the number of requests in flight."""
        chosen = self.choose(query, candidates).replica
        return [
            Score(each.id, each.in_flight, 0, each.in_flight, each is chosen) for each in candidates
        ]
