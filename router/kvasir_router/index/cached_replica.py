"""What the indexes need to know of a replica."""

from typing import Protocol

from kvasir_router.discovery.specs import ReplicaSpec


class CachedReplica(Protocol):
    """Engine with a KV cache: the key of what an index holds."""

    id: str
    spec: ReplicaSpec
