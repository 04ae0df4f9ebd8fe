"""Replicas as the indexes need to know them."""

from typing import Protocol

from kvasir_router.discovery.specs import ReplicaSpec


class CachedReplica(Protocol):
    """Engine with a KV cache: the key of what an index holds."""

    id: str
    spec: ReplicaSpec
