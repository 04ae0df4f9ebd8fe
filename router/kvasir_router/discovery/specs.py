"""Specifications that a source of models and replicas gives the router.

A source yields whole snapshots, never differences: the fleet compares each with what it has, so
replicas come, drain (`draining`, or missing from the next snapshot) and go without the source
keeping any state.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from kvasir.resource.engines.traits import CustomAPI

FALLBACK_AFTER = 5.0
"""Seconds: half of the time after which clients of streams are told that their request waits."""


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


class Departure(Enum):
    """Expected end of a replica that serves as yet."""

    NONE = "none"
    LATER = "later"
    """New requests go to it only where no other one has room."""
    NOW = "now"
    """The same, and its streams go on elsewhere as soon as another replica can take them."""


OWN_ENGINES = (EngineKind.KVASIR, EngineKind.KVASIR_OPEN)
"""Engines that send a head when they have accepted a request, and whose probes tell when they
hang."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Needs of a server behind a base URL, which is not of the fleet: it is told no secret, no
    client's key and no header that it does not need."""

    prefix: str = "/v1"
    """Path in the place of a request's `/v1`."""
    model: str = ""
    """Its own name of the model; "" = the one that the client gives."""
    key: str = field(default="", repr=False)
    """Key that it asks for; "" = none."""
    key_header: str = "authorization"
    """Header of the key: `authorization`, as a bearer token, or another one, as it is."""
    authorities: str = field(default="", repr=False)
    """Certificates (PEM) of those that may have signed its own; "" = the router's."""
    server_name: str = ""
    """Name that its certificate has, and that TLS asks for; "" = the URL's host."""
    health_path: str = ""
    """Path, as it is, that answers 200 while it serves; "" = it is not asked: requests tell."""
    problem: str = ""
    """Clause on why it cannot be used; "" = it can."""

    @property
    def key_line(self) -> bytes:
        """Header line with its key; empty if it asks for none."""
        if not self.key:
            return b""
        if self.key_header == "authorization":
            return b"Authorization: Bearer %b\r\n" % self.key.encode()
        return b"%b: %b\r\n" % (self.key_header.encode(), self.key.encode())


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
    departure: Departure = Departure.NONE
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
    namespace: str = ""
    """Namespace of the LLMDeployment whose engine it is; "" = of none."""
    revision: str = ""
    """Revision of its template; "" = unknown."""
    canary: bool = False
    """It gets no request but by a split that names its revision."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters that it holds now; None = all of its model's."""
    custom: CustomAPI | None = None
    """Paths and metrics of an engine of kind OPENAI; None = only OpenAI's API is known."""
    upstream: Upstream | None = None
    """None = an engine of the fleet, whose API is at the root and takes requests as they came."""

    @property
    def host_header(self) -> bytes:
        """Value of the Host header: with the port only where it is not the scheme's own,
        since gateways of providers compare it with their names."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == (443 if self.tls else 80)
        return (host if is_default else f"{host}:{self.port}").encode()


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
    """LoRA adapters, each a name of its own to clients; requests go to replicas that hold it."""
    hold: float | None = None
    """Seconds that requests wait while no replica serves; None = as the router is set."""
    tokenizer: str | None = None
    """Tokenizer of its prompts, for engines that publish KV events and report no prompts: a
    directory or a Hub id; None = their events are of no use."""
    split: SplitSpec | None = None
    """Canary that gets a part of the requests."""
    fallbacks: tuple[str, ...] = ()
    """Names that a request goes to, in their order, where the model does not answer it."""
    fallback_after: float = FALLBACK_AFTER
    """Seconds that a request waits for a replica with room before it goes to a fallback."""


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
