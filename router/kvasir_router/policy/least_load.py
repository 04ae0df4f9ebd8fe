"""The replica with the fewest requests in flight."""

from collections.abc import Sequence
from random import random

from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.replica import Replica
from kvasir_router.policy.base import LoadPolicy
from kvasir_router.wire.query import Query


class LeastLoad(LoadPolicy):
    """argmin of in-flight requests as this router counts them, uniformly among equals.

    The count is raised at the choice and lowered when the request ends, so simultaneous requests
    never herd. Equals are broken at random (reservoir sampling) because several routers that
    rotate alike would herd. Known as `leastconn` (HAProxy) and `least_conn` (nginx).
    """

    def choose(self, query: Query, candidates: Sequence[Replica]) -> Choice:
        best = candidates[0]
        equals = 1
        for replica in candidates[1:]:
            if replica.in_flight < best.in_flight:
                best, equals = replica, 1
            elif replica.in_flight == best.in_flight:
                equals += 1
                if random() * equals < 1.0:
                    best = replica
        return Choice(best)
