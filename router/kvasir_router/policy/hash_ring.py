"""Consistent hashing with bounded loads."""

from bisect import bisect
from collections.abc import Sequence
from math import ceil

import xxhash

from kvasir_router.fleet.replica import Replica

MAX_LOAD_RATIO = 1.25
"""c in the paper: no replica gets more than this times the mean of requests in flight."""
POINTS = 128
"""Points of each replica on the ring."""


class Ring:
    """A key's replica is the first one clockwise from the key that has room:

        in flight + 1 <= ceil(1.25 (all in flight + 1) / replicas)

    Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016). A replica
    that comes or goes moves only its own share of the keys, and a popular key overflows to the same
    few neighbours.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        points = sorted(
            (xxhash.xxh3_64_intdigest(f"{replica.id}#{point}".encode()), at)
            for at, replica in enumerate(replicas)
            for point in range(POINTS)
        )
        self._replicas = replicas
        self._points = [point for point, _ in points]
        self._owners = [replicas[at] for _, at in points]

    def walk(self, key: int) -> Replica:
        """The replica for a 64-bit key."""
        replicas = self._replicas
        total = sum(replica.in_flight for replica in replicas)
        room = ceil(MAX_LOAD_RATIO * (total + 1) / len(replicas))
        owners = self._owners
        at = bisect(self._points, key)
        for step in range(len(owners)):
            owner = owners[(at + step) % len(owners)]
            if owner.in_flight < room:
                return owner
        return min(replicas, key=lambda replica: replica.in_flight)
