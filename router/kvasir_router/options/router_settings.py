"""Everything that can be set on a router, in one immutable object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvasir_router.options.tokenizing_settings import TokenizingSettings
from kvasir_router.wire.http_request import Limits


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the router waits, in seconds. No limit is put on an engine's first byte: a long
    prefill is not a fault."""

    header: float = 10.0
    """From a request's first byte to the end of its header."""

    body: float = 30.0
    """Maximum seconds between two reads of a request body."""

    body_rate: float = 8192.0
    """Bytes a second that a body comes at, after as much time."""

    keep_alive: float = 75.0
    """An idle client connection."""

    send: float = 300.0
    """A client that does not read its answer."""

    connect: float = 2.0
    """Opening a connection to a replica."""

    upstream_idle: float = 4.0
    """An idle connection to a replica; below the 5 s after which uvicorn closes it."""


@dataclass(frozen=True, slots=True)
class Probing:
    """How each replica's `GET /ready` is asked, in seconds: those of a replica that pushes its
    load. One that does not is asked after two fifths of the interval and given half the time."""

    interval: float = 1.0
    """Between two probes of a replica that has served before."""

    startup_interval: float = 0.1
    """Between two probes of a replica that has never been ready."""

    timeout: float = 1.0
    """For one probe, connecting included."""

    suspect_timeout: float = 0.3
    """For one probe of a replica whose load stream fell silent."""


@dataclass(frozen=True, slots=True)
class Feeding:
    """Settings of load streams, event feeds and metrics scraping."""

    scrape_interval: float = 1.0
    """Seconds between two looks at the /metrics of an engine that does not push its load."""


@dataclass(frozen=True, slots=True)
class Failover:
    """What is done about replicas that fail, and about time that passes."""

    request_timeout: float | None = None
    """Seconds for a whole answer where the request has no `x-request-timeout`; None = no limit."""

    migration: bool = True
    """Whether broken streams migrate to another replica."""

    max_moves: int = 3
    """Times that a request goes elsewhere because its replica ended or fell silent. What an engine
    hands over at the end of its drain does not count, unless this is 0."""

    stream_bytes: int = 4 * 1024 * 1024
    """Maximum transcript bytes of one stream; a larger stream cannot migrate."""

    streams_bytes: int = 256 * 1024 * 1024
    """What is kept of all streams together."""

    hedging: bool = False
    """Whether a second replica is asked when a unary answer takes longer than 95 % of them."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate files, all PEM."""

    cert: Path | None = None
    """Shown to clients, with its chain; None = plain HTTP."""

    key: Path | None = None

    replica_ca: Path | None = None
    """Authorities that vouch for replicas with an https URL; None = the system's."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many requests wait, and how long, in seconds."""

    requests: int = 1024
    """For each model; 0 = none waits."""

    workers: int = 1
    """Processes that share the clients: each sees its part of what tenants run."""

    body_bytes: int = 256 * 1024 * 1024
    """Of the bodies of all that wait."""

    timeout: float = 30.0
    """While replicas serve, but have no room."""

    hold: float = 60.0
    """While the model has no replica that serves."""

    headroom: float = 0.1
    """Part of what a model's replicas can run that tenants with more than their share leave free,
    while others use the model too: so the others need not wait for a place."""

    heartbeat: float = 10.0
    """Between two SSE comments to a client that waits for a stream."""

    hold_heartbeat: float = 2.0
    """The same while no replica serves: whoever waits for a model to start is told early."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets of one request, in seconds."""

    ttft: float = 2.0
    """From a whole request to the first byte of its answer, waiting included."""

    itl: float = 0.1
    """Between two tokens of a stream, on average over the stream."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """A router process. The defaults are those of `kvasir router`."""

    config: Path | None = None
    """The discovery file; None = a Kubernetes cluster."""

    watch_namespaces: tuple[str, ...] = ()
    """Of the cluster; none = all."""

    workers: int = 1
    """Processes that serve clients; with several there is one more, which keeps their index."""

    host: str = "127.0.0.1"
    port: int = 8080
    admin_port: int = 8081

    policy: str = "kv_aware"
    """Registered name of the policy of models that name none."""

    policy_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options by policy, for all of its name; a model's own go over them."""

    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    probing: Probing = field(default_factory=Probing)
    failover: Failover = field(default_factory=Failover)
    feeding: Feeding = field(default_factory=Feeding)
    tokenizing: TokenizingSettings = field(default_factory=TokenizingSettings)

    tls: Tls = field(default_factory=Tls)

    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API from a browser; `*` is every one."""

    max_connections: int = 10_000
    """Client connections open at once; one more is answered 503 and closed."""

    max_in_flight: int = 2048
    """Requests in flight to one replica; when all are full the answer is 429."""

    engine_queue: int = 4
    """Requests that may wait inside one engine whose load is known; 0 = without bound."""

    waiting: QueueLimits = field(default_factory=QueueLimits)

    keys_file: Path | None = None
    """API keys; None = everybody may use everything."""

    routers: int = 1
    """Routers that share the clients: each enforces its part of every key's limits."""

    routers_dns: str | None = None
    """A name that leads to every Ready router: their number takes the place of `routers`."""

    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector; None = no spans."""

    trace_ratio: float = 1.0
    """Part of the requests without a caller's trace that get a span."""

    slo: Slo = field(default_factory=Slo)
    slo_by_model: Mapping[str, Slo] = field(default_factory=dict)

    pre_stop_delay: float = 0.0
    """Seconds after SIGTERM in which the router is not ready but still accepts."""

    drain_timeout: float = 30.0
    """Seconds that requests in progress get after that."""

    drain_idle: float = 2.0
    """Seconds that a connection is idle before it is closed then."""

    fleet_secret: str | None = field(default=None, repr=False)
    """Sent to every replica as `x-kvasir-fleet-secret`."""

    access_log: bool = True
