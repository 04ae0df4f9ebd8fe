"""What a policy is."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.http import Request


class Choice(NamedTuple):
    """Where a request goes. A policy that splits prefill from decode adds a second replica."""

    replica: Replica


class Policy(Protocol):
    """Chooses for one model; each model has an instance of its own."""

    def choose(self, request: Request, candidates: Sequence[Replica]) -> Choice:
        """`candidates` is not empty, and all in it may take the request."""
