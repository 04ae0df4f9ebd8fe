"""Settings of a router: each with its flag, environment variable, default, limits and help."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvasir.cli.flags import Flag, flag, group
from kvasir_router.options import option_values as parse
from kvasir_router.options.cluster_scope import ClusterScope
from kvasir_router.options.failover_settings import Failover
from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.options.proxy_settings import ProxySettings
from kvasir_router.options.response_settings import ResponseSettings
from kvasir_router.options.router_panels import (
    CLIENTS,
    ENGINES,
    KEYS,
    ROUTING,
    STOPPING,
    TLS,
    WAITING,
    WATCHING,
)
from kvasir_router.options.slo import Slo
from kvasir_router.options.spend_settings import SpendSettings
from kvasir_router.options.tokenizing_settings import TokenizingSettings
from kvasir_router.wire.http_request import Limits


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of connections, in seconds. No limit is put on a Kvasir engine's first byte: a
    long prefill is not a fault."""

    header: float = flag(
        10.0, "Seconds for a request's whole header to arrive.", CLIENTS, "header_timeout", min=0.1
    )
    handshake: float = flag(
        10.0, "Seconds for a client's whole TLS handshake.", CLIENTS, "handshake_timeout", min=0.1
    )
    body: float = flag(
        30.0, "Seconds without a byte of a request's body.", CLIENTS, "body_timeout", min=0.1
    )
    body_rate: float = flag(
        8192.0,
        "Bytes a second at which a body that takes longer than --body-timeout has to come.",
        CLIENTS,
        "min_body_rate",
        min=1.0,
    )
    keep_alive: float = flag(
        75.0,
        "Seconds an idle client connection stays open.",
        CLIENTS,
        "keep_alive_timeout",
        min=0.1,
    )
    send: float = flag(
        300.0, "Seconds a client may leave its answer unread.", CLIENTS, "send_timeout", min=0.1
    )
    connect: float = flag(
        2.0, "Seconds to connect to a replica.", ENGINES, "connect_timeout", min=0.01
    )
    upstream_idle: float = 4.0
    """Seconds an idle connection to a replica stays open; below the 5 s after which uvicorn closes
    it."""


@dataclass(frozen=True, slots=True)
class Probing:
    """Times of `GET /ready` of each replica that pushes its load, in seconds. One that does not is
    asked after two fifths of the interval and given half the time."""

    interval: float = flag(
        1.0,
        "Seconds between probes of /ready; two fifths of it without a load stream.",
        ENGINES,
        "probe_interval",
        min=0.1,
    )
    startup_interval: float = 0.1
    """Seconds between two probes of a replica that has never been ready."""
    timeout: float = flag(
        1.0,
        "Seconds for one probe; half without a load stream.",
        ENGINES,
        "probe_timeout",
        min=0.01,
    )
    suspect_timeout: float = 0.3
    """Seconds for one probe of a replica whose load stream fell silent."""


@dataclass(frozen=True, slots=True)
class Feeding:
    """Settings of load streams, event feeds and metrics scraping."""

    scrape_interval: float = flag(
        1.0,
        "Seconds between looks at /metrics of engines that do not push their load: vLLM, SGLang, "
        "and Kvasir's without grpc_port.",
        ENGINES,
        min=0.1,
    )


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate files, all PEM."""

    cert: Path | None = flag(
        None,
        "Certificate chain (PEM) for HTTPS to clients; needs --tls-key. Both files are read again "
        "when they change.",
        TLS,
        "tls_cert",
        dir_okay=False,
    )
    key: Path | None = flag(
        None, "Its private key (PEM), not encrypted.", TLS, "tls_key", dir_okay=False
    )
    replica_ca: Path | None = flag(
        None,
        "Certificate authorities (PEM) that vouch for replicas with an https URL; without it the "
        "system's do.",
        TLS,
        "replica_ca_file",
        dir_okay=False,
    )


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds on the requests that wait; times in seconds."""

    requests: int = flag(
        1024,
        "Requests that wait for each model when no replica may take them; 0 = none waits.",
        WAITING,
        "max_waiting",
        min=0,
    )
    workers: int = 1
    """Processes that share the clients: each sees its part of what tenants run."""
    body_bytes: int = 256 * 1024 * 1024
    """Maximum bytes of the bodies of all that wait."""
    timeout: float = flag(
        30.0,
        "Seconds a request waits while all replicas are full; then 429.",
        WAITING,
        "queue_timeout",
        min=0.0,
    )
    hold: float = flag(
        60.0,
        "Seconds it waits while the model has no replica; then 503.",
        WAITING,
        "hold_timeout",
        min=0.0,
    )
    headroom: float = 0.1
    """Part of what a model's replicas can run that tenants with more than their share leave free,
    while others use the model too: so the others need not wait for a place."""
    heartbeat: float = 10.0
    """Seconds between two SSE comments to a client that waits for a stream."""
    hold_heartbeat: float = 2.0
    """The same while no replica serves: whoever waits for a model to start is told early."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Settings of a router process. The defaults are those of `kvasir router`."""

    config: Path | None = flag(
        None,
        "Discovery file (YAML): models, their names, their replicas and what these offer. It is "
        "read again when it changes; a bad one is reported and the last good one stays.",
        ROUTING,
        envvar="KVASIR_ROUTER_CONFIG",
        dir_okay=False,
    )
    """None = a Kubernetes cluster."""
    scope: ClusterScope = group(ClusterScope)
    host: str = flag("127.0.0.1", "Address to listen on.", ROUTING)
    port: int = flag(8080, "Port of the API.", ROUTING, min=0, max=65535)
    admin_host: str = flag(
        "127.0.0.1", "Address for --admin-port. What it answers is for operators alone.", ROUTING
    )
    admin_port: int = flag(
        8081,
        "Port for operators: a page at /, /metrics, /serving, /scaling, /debug/fleet, "
        "/debug/route.",
        ROUTING,
        min=0,
        max=65535,
    )
    workers: int = flag(
        1,
        "Processes that serve clients, each on a core of its own. With several there is one more, "
        "which listens to engines for all of them.",
        ROUTING,
        min=1,
        max=64,
    )
    policy: str = flag(
        "kv_aware",
        "How a replica is chosen, where the discovery file does not say: kv_aware, least_load, "
        "round_robin, prefix_hash, session, or one that another installed package registers.",
        ROUTING,
    )
    policy_options: Mapping[str, Mapping[str, Any]] = flag(
        {},
        "An option of a policy; several times for several, as session.header=x-conversation or "
        "kv_aware.miss_weight=2.",
        ROUTING,
        "policy_option",
        type=list[str] | None,
        parse=parse.policy_options,
        metavar="POLICY.OPTION=VALUE",
    )
    """Options by policy, for all of its name; a model's own go over them."""
    fleet_secret_file: Path | None = flag(
        None,
        "File with the secret that engines know routers by, read again when it changes; several "
        "lines while it is replaced. Without it, the environment variable "
        f"{parse.SECRET_VARIABLE} is used.",
        ENGINES,
        exists=True,
        dir_okay=False,
    )
    fleet_secret: str | None = field(default=None, repr=False)
    """Text of that file or variable at the start; its first line is sent to every replica as
    `x-kvasir-fleet-secret`."""
    max_in_flight: int = flag(
        2048, "Requests to one replica; when all are full: 429.", ENGINES, min=1
    )
    engine_queue: int = flag(
        4,
        "Requests that may wait inside one engine, where who came first goes first; the others "
        "wait in the router, in order of priority and fair to tenants. 0 = no bound.",
        ENGINES,
        min=0,
    )
    feeding: Feeding = group(Feeding)
    tokenizing: TokenizingSettings = group(TokenizingSettings)
    probing: Probing = group(Probing)
    failover: Failover = group(Failover)
    keys_file: Path | None = flag(
        None,
        "API keys, made by `kvasir keys create`; read again when it changes. With it, requests "
        "without a known key are refused; without it, everybody may use everything.",
        KEYS,
        dir_okay=False,
        envvar="KVASIR_KEYS_FILE",
    )
    issuers_file: Path | None = flag(
        None,
        "OpenID Connect issuers whose access tokens (JWT) are taken beside API keys, and what each "
        "tenant in them may do; read again when it changes.",
        KEYS,
        dir_okay=False,
        envvar="KVASIR_ISSUERS_FILE",
    )
    shared_prompts: bool = flag(
        False,
        "Let tenants find their prompts in each other's KV cache. Without it, each tenant's "
        "requests get a `cache_salt` of its own: no answer's delay tells what others have asked.",
        KEYS,
    )
    routers: int = flag(
        1, "Routers that share the clients: each enforces its part of limits.", KEYS, min=1
    )
    routers_dns: str | None = flag(
        None,
        "DNS name that leads to every Ready router, such as a headless Service's: they count "
        "themselves by it, from --routers on.",
        KEYS,
    )
    spend: SpendSettings = group(SpendSettings)
    responses: ResponseSettings = group(ResponseSettings)
    waiting: QueueLimits = group(QueueLimits)
    limits: Limits = group(
        Limits,
        body_bytes=Flag(
            "Larger request bodies are answered 413.",
            CLIENTS,
            "max_body_bytes",
            extra={"min": 1024},
        ),
        buffered_bytes=Flag(
            "Memory for the bodies of all requests that a process receives or answers; longer ones "
            "than 16 KiB are answered 503 then.",
            CLIENTS,
            "max_buffered_bytes",
            extra={"min": 1024},
        ),
        header_bytes=Flag(
            "Larger request headers are answered 431.",
            CLIENTS,
            "max_header_bytes",
            extra={"min": 1024},
        ),
        headers=Flag(
            "Requests with more headers are answered 431.", CLIENTS, "max_headers", extra={"min": 8}
        ),
    )
    max_connections: int = flag(
        10_000, "Client connections; one more is answered 503.", CLIENTS, min=1
    )
    timeouts: Timeouts = group(Timeouts)
    proxies: ProxySettings = group(ProxySettings)
    cors_origins: tuple[str, ...] = flag(
        (),
        "Origin of web pages that may call the API from a browser, as https://app.example.com; "
        "several times for several, `*` for every one. Without it none may.",
        CLIENTS,
        "cors_origin",
        type=list[str] | None,
        parse=parse.origins,
    )
    tls: Tls = group(Tls)
    picker: PickerSettings = group(PickerSettings)
    slo: Slo = group(Slo)
    slo_by_model: Mapping[str, Slo] = flag(
        {},
        "One model's targets; several times for several models.",
        WATCHING,
        "slo",
        type=list[str] | None,
        parse=parse.slo_by_model,
        metavar="MODEL=TTFT:ITL",
    )
    otlp_endpoint: str | None = flag(
        None,
        "Base URL of an OpenTelemetry collector (OTLP over HTTP). Without it, no spans.",
        WATCHING,
        parse=parse.http_url,
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    trace_ratio: float = flag(
        1.0,
        "Part of the requests without a caller's trace that get a span.",
        WATCHING,
        min=0.0,
        max=1.0,
    )
    access_log: bool = flag(
        True, "One JSON line on stdout for each request; never its body.", WATCHING
    )
    audit_log: str | None = flag(
        None,
        "File with one JSON line for each administrative action (a policy set, spend read, keys "
        "changed) and each one that was refused; - for stdout. It goes on as a new file at 64 MiB.",
        WATCHING,
        metavar="FILE",
    )
    pre_stop_delay: float = flag(
        0.0,
        "Seconds after SIGTERM in which /ready fails but connections are accepted: the time that "
        "load balancers need to notice.",
        STOPPING,
        min=0.0,
    )
    drain_timeout: float = flag(
        30.0, "Seconds that requests in progress get after that.", STOPPING, min=0.0
    )
    drain_idle: float = flag(
        2.0,
        "Seconds that a connection without a request stays open then: as long as clients keep one "
        "for their next request, none of these is lost.",
        STOPPING,
        min=0.0,
    )
