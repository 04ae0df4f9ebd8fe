"""Each replica in turn."""

from collections.abc import Sequence

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.replica import Replica
from kvasir_router.policy.base import LoadPolicy
from kvasir_router.wire.query import Query


class RoundRobin(LoadPolicy):
    """The candidates in their order, one after the other, whatever their load."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        return Choice(candidates[self._turn % len(candidates)])

    def sent(self, query: Query, choice: Choice) -> None:
        self._turn += 1
