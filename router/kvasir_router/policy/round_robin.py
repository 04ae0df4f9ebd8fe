"""Each replica in turn."""

from collections.abc import Sequence

from kvasir_router.fleet.replica import Replica
from kvasir_router.policy.base import Choice
from kvasir_router.proxy.http import Request


class RoundRobin:
    """The candidates in their order, one after the other, whatever their load."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: Request, candidates: Sequence[Replica]) -> Choice:
        self._turn += 1
        return Choice(candidates[self._turn % len(candidates)])
