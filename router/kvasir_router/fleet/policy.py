"""Protocol of a routing policy: what the fleet asks of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Score:
    """Row of `/debug/route`: a candidate as the policy sees it."""

    replica: str
    cost: float
    """Less is better; what it counts is the policy's to say."""
    hit_tokens: int
    load_tokens: float
    chosen: bool
    source: str | None = None
    """Which index says that there is a hit."""
    affinity: bool = True
    """False if the hit does not count: on a replica with more than its share of the load."""


class Policy(Protocol):
    """Chooser of replicas for one model; each model has an instance of its own, in each process.
    Nothing here may block."""

    spec: PolicySpec
    """Name and options that it was made from; set by the registry."""

    @property
    def sink(self) -> BlockSink | None:
        """Receiver of the engines' events about KV blocks and prompts; None = not wanted. Never
        changes."""
        ...

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        """`candidates` is not empty, and all in it may take the request. Changes nothing that a
        second look would see: a choice may be thrown away."""
        ...

    def sent(self, query: Query, choice: Choice) -> None:
        """The request goes to the chosen replica, which will soon have its prompt's KV."""
        ...

    def ended(self, query: Query, choice: Choice, usage: Usage | None) -> None:
        """The request has ended, with what its engine says that it used, if it did."""
        ...

    def forget_replica(self, replica: Replica) -> None:
        """The replica went or restarted: nothing is in its cache."""
        ...

    def explain(self, query: Query, candidates: Sequence[Replica]) -> list[Score]:
        """One row a candidate, for a person."""
        ...
