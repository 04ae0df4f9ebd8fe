"""Specifications that a source of models and replicas gives the router.

A source yields whole snapshots, never differences: the fleet compares each with what it has, so
replicas come, drain (`draining`, or missing from the next snapshot) and go without the source
keeping any state.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


class EngineKind(Enum):
    """Engine behind an address, which says what it offers besides the OpenAI API."""

    KVASIR = "kvasir"
    """The engine contract: gRPC load and prompt reports, KV events, resume."""
    KVASIR_OPEN = "kvasir-open"
    """A Kvasir engine outside the fleet: it is not told the fleet's secret, and of it only its
    metrics are read."""
    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    """The OpenAI API alone."""


@dataclass(frozen=True, slots=True)
class MatchSpec:
    """Requests that go to a canary whatever its weight is: by a header, or by an API key."""

    header: str = ""
    """Name in lower case; "" = by `key_id`."""
    value: str = ""
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """Shares of a model's requests that two revisions get."""

    id: str
    """Another one where samples begin anew."""
    revision: str
    """The canary's; every other one is stable."""
    weight: float | None = None
    """The canary's share, 0 to 1; None = all replicas are alike."""
    matches: tuple[MatchSpec, ...] = ()
    min_samples: int = 500
    """Samples of the canary that are kept, however old they are."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Specification of one engine. `id` is unique within its model; two specs with another address
    are two replicas."""

    id: str
    host: str
    port: int
    draining: bool = False
    """No new requests; those in flight end."""
    engine: EngineKind = EngineKind.KVASIR
    grpc_port: int | None = None
    """A Kvasir engine's load and prompt reports; None = its load is unknown."""
    kv_events: str | None = None
    """ZMQ address of its block events."""
    kv_replay: str | None = None
    """ZMQ address where missed block events are asked for."""
    tls: bool = False
    """HTTP and gRPC over TLS."""
    node: str = ""
    """The machine that ends with all replicas on it; "" = unknown."""
    revision: str = ""
    """Revision of its template; "" = unknown."""
    canary: bool = False
    """It gets no request but by a split that names its revision."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A routing policy by its registered name, with options of its own."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model under its name and aliases."""

    name: str
    aliases: tuple[str, ...] = ()
    replicas: tuple[ReplicaSpec, ...] = ()
    policy: PolicySpec | None = None
    """Policy that chooses its replicas; None = the router's."""
    adapters: tuple[str, ...] = ()
    """LoRA names that its replicas serve, each a name of its own to clients."""
    hold: float | None = None
    """Seconds that requests wait while no replica serves; None = as the router is set."""
    tokenizer: str | None = None
    """Tokenizer of its prompts, for engines that publish KV events and report no prompts: a
    directory or a Hub id; None = their events are of no use."""
    split: SplitSpec | None = None
    """Canary that gets a part of the requests."""


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """A name whose requests are split between models."""

    name: str
    split: tuple[tuple[str, float], ...]
    """Models of the same snapshot, each with its weight: 0 or more, not all 0."""


Snapshot = tuple[ModelSpec | CanarySpec, ...]
"""Every name there is. Names, aliases and adapters are unique in it."""


class DiscoveryError(Exception):
    """The source cannot say what exists; one sentence on what to correct."""


class DiscoverySource(Protocol):
    """Source of snapshots."""

    async def load(self) -> Snapshot | None:
        """The state now; None when it is not known yet. Raises DiscoveryError."""

    def watch(self) -> AsyncIterator[Snapshot]:
        """The state whenever it changes. Errors are reported and counted, the last good state
        stays."""
