"""What a source of models and replicas gives the router.

A source yields whole snapshots, never differences: the fleet compares each with what it has, so
replicas come, drain (`draining`, or missing from the next snapshot) and go without the source
keeping any state. What a cluster knows beyond a file (weights between the models behind one alias,
adapter names) becomes a field of these classes when a policy acts on it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One engine. `id` is unique within its model; two specs with another address are two
    replicas."""

    id: str
    host: str
    port: int
    draining: bool = False
    """No new requests; those in flight end."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model under its name and aliases, which are unique in a snapshot."""

    name: str
    aliases: tuple[str, ...] = ()
    replicas: tuple[ReplicaSpec, ...] = ()


Snapshot = tuple[ModelSpec, ...]


class DiscoveryError(Exception):
    """The source cannot say what exists; one sentence on what to correct."""


class Source(Protocol):
    """Where snapshots come from."""

    async def load(self) -> Snapshot:
        """The state now. Raises DiscoveryError."""

    def watch(self) -> AsyncIterator[Snapshot]:
        """The state whenever it changes. Errors are reported and counted, the last good state
        stays."""
