"""The flags of `kvasir router`, by topic."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

SECRET_VARIABLE = "KVASIR_FLEET_SECRET"  # noqa: S105 - the name of a variable

ROUTING, ENGINES, FAILURES = "Routing", "Engines", "Failures"
TENANTS, WAITING, CLIENTS, TLS = "Keys", "Waiting", "Clients", "TLS"
WATCHING, STOPPING = "Observation", "Stopping"


def _flag(name: str, help_: str, panel: str, **extra: Any) -> Any:
    return typer.Option(name, help=help_, rich_help_panel=panel, **extra)


Discovery = Annotated[
    Literal["file", "kubernetes"],
    _flag(
        "--discovery",
        "Where models and replicas are learnt from: a file (--config), or a cluster: that of "
        "KUBECONFIG, or else of the pod that the router runs in.",
        ROUTING,
    ),
]
WatchNamespace = Annotated[
    list[str] | None,
    _flag(
        "--watch-namespace",
        "Kubernetes namespace to serve; several times for several. Without it, all.",
        ROUTING,
    ),
]
Config = Annotated[
    Path | None,
    _flag(
        "--config",
        "Discovery file (YAML): models, their names, their replicas and what these offer. It is "
        "read again when it changes; a bad one is reported and the last good one stays.",
        ROUTING,
        envvar="KVASIR_ROUTER_CONFIG",
        dir_okay=False,
    ),
]
Host = Annotated[str, _flag("--host", "Address to listen on.", ROUTING)]
Port = Annotated[int, _flag("--port", "Port of the API.", ROUTING, min=0, max=65535)]
AdminPort = Annotated[
    int,
    _flag(
        "--admin-port",
        "Port for operators: a page at /, /metrics, /serving, /scaling, /debug/fleet, "
        "/debug/route.",
        ROUTING,
        min=0,
        max=65535,
    ),
]
Workers = Annotated[
    int,
    _flag(
        "--workers",
        "Processes that serve clients, each on a core of its own. With several there is one more, "
        "which listens to engines for all of them.",
        ROUTING,
        min=1,
        max=64,
    ),
]
Policy = Annotated[
    str,
    _flag(
        "--policy",
        "How a replica is chosen, where the discovery file does not say: kv_aware, least_load, "
        "round_robin, prefix_hash, session, or one that another installed package registers.",
        ROUTING,
    ),
]
PolicyOption = Annotated[
    list[str] | None,
    _flag(
        "--policy-option",
        "An option of a policy; several times for several, as session.header=x-conversation or "
        "kv_aware.miss_weight=2.",
        ROUTING,
        metavar="POLICY.OPTION=VALUE",
    ),
]

FleetSecretFile = Annotated[
    Path | None,
    _flag(
        "--fleet-secret-file",
        "File with the secret that engines know routers by. Without it, the environment variable "
        f"{SECRET_VARIABLE} is used.",
        ENGINES,
        exists=True,
        dir_okay=False,
    ),
]
MaxInFlight = Annotated[
    int,
    _flag("--max-in-flight", "Requests to one replica; when all are full: 429.", ENGINES, min=1),
]
EngineQueue = Annotated[
    int,
    _flag(
        "--engine-queue",
        "Requests that may wait inside one engine, where who came first goes first; the others "
        "wait in the router, in order of priority and fair to tenants. 0 = no bound.",
        ENGINES,
        min=0,
    ),
]
TokenizerProcesses = Annotated[
    int,
    _flag(
        "--tokenizer-processes",
        "Processes that tokenise prompts of models with a `tokenizer` in the discovery file.",
        ENGINES,
        min=1,
        max=64,
    ),
]
TokenizerDeadline = Annotated[
    float,
    _flag(
        "--tokenizer-deadline",
        "Maximum seconds a request waits for its prompt to be tokenised; then the approximate "
        "index decides. 0 = it never waits.",
        ENGINES,
        min=0.0,
        max=1.0,
    ),
]
ScrapeInterval = Annotated[
    float,
    _flag(
        "--scrape-interval",
        "Seconds between looks at /metrics of engines that do not push their load: vLLM, SGLang, "
        "and Kvasir's without grpc_port.",
        ENGINES,
        min=0.1,
    ),
]
ProbeInterval = Annotated[
    float,
    _flag(
        "--probe-interval",
        "Seconds between probes of /ready; two fifths of it without a load stream.",
        ENGINES,
        min=0.1,
    ),
]
ProbeTimeout = Annotated[
    float,
    _flag(
        "--probe-timeout", "Seconds for one probe; half without a load stream.", ENGINES, min=0.01
    ),
]
ConnectTimeout = Annotated[
    float, _flag("--connect-timeout", "Seconds to connect to a replica.", ENGINES, min=0.01)
]

RequestTimeout = Annotated[
    float | None,
    _flag(
        "--request-timeout",
        "Seconds for a whole answer where the request has no x-request-timeout header; without "
        "it, no limit.",
        FAILURES,
        min=0.001,
    ),
]
Migration = Annotated[
    bool,
    _flag(
        "--migration/--no-migration",
        "Let another replica go on with a stream whose replica broke (Kvasir engines only).",
        FAILURES,
    ),
]
MaxMoves = Annotated[
    int,
    _flag(
        "--max-moves",
        "Times that one request goes elsewhere because its replica ended or fell silent.",
        FAILURES,
        min=0,
    ),
]
StreamBytes = Annotated[
    int,
    _flag(
        "--migration-stream-bytes",
        "Bytes kept of one stream so that another replica can continue it.",
        FAILURES,
        min=0,
    ),
]
StreamsBytes = Annotated[
    int, _flag("--migration-total-bytes", "The same for all streams together.", FAILURES, min=0)
]
Hedging = Annotated[
    bool,
    _flag(
        "--hedging/--no-hedging",
        "Ask a second replica when a unary answer takes longer than 95 % of them.",
        FAILURES,
    ),
]

KeysFile = Annotated[
    Path | None,
    _flag(
        "--keys-file",
        "API keys, made by `kvasir keys create`; read again when it changes. With it, requests "
        "without a known key are refused; without it, everybody may use everything.",
        TENANTS,
        dir_okay=False,
        envvar="KVASIR_KEYS_FILE",
    ),
]
Routers = Annotated[
    int,
    _flag(
        "--routers",
        "Routers that share the clients: each enforces its part of limits.",
        TENANTS,
        min=1,
    ),
]

RoutersDNS = Annotated[
    str | None,
    _flag(
        "--routers-dns",
        "DNS name that leads to every Ready router, such as a headless Service's: they count "
        "themselves by it, from --routers on.",
        TENANTS,
    ),
]

MaxWaiting = Annotated[
    int,
    _flag(
        "--max-waiting",
        "Requests that wait for each model when no replica may take them; 0 = none waits.",
        WAITING,
        min=0,
    ),
]
QueueTimeout = Annotated[
    float,
    _flag(
        "--queue-timeout",
        "Seconds a request waits while all replicas are full; then 429.",
        WAITING,
        min=0.0,
    ),
]
HoldTimeout = Annotated[
    float,
    _flag(
        "--hold-timeout",
        "Seconds it waits while the model has no replica; then 503.",
        WAITING,
        min=0.0,
    ),
]

MaxBodyBytes = Annotated[
    int, _flag("--max-body-bytes", "Larger request bodies are answered 413.", CLIENTS, min=1024)
]
MaxBufferedBytes = Annotated[
    int,
    _flag(
        "--max-buffered-bytes",
        "Memory for the bodies of all requests that a process receives or answers; longer ones "
        "than 16 KiB are answered 503 then.",
        CLIENTS,
        min=1024,
    ),
]
MaxHeaderBytes = Annotated[
    int,
    _flag("--max-header-bytes", "Larger request headers are answered 431.", CLIENTS, min=1024),
]
MaxHeaders = Annotated[
    int, _flag("--max-headers", "Requests with more headers are answered 431.", CLIENTS, min=8)
]
MaxConnections = Annotated[
    int, _flag("--max-connections", "Client connections; one more is answered 503.", CLIENTS, min=1)
]
HeaderTimeout = Annotated[
    float,
    _flag("--header-timeout", "Seconds for a request's whole header to arrive.", CLIENTS, min=0.1),
]
BodyTimeout = Annotated[
    float, _flag("--body-timeout", "Seconds without a byte of a request's body.", CLIENTS, min=0.1)
]
BodyRate = Annotated[
    float,
    _flag(
        "--min-body-rate",
        "Bytes a second at which a body that takes longer than --body-timeout has to come.",
        CLIENTS,
        min=1.0,
    ),
]
KeepAliveTimeout = Annotated[
    float,
    _flag(
        "--keep-alive-timeout", "Seconds an idle client connection stays open.", CLIENTS, min=0.1
    ),
]
SendTimeout = Annotated[
    float,
    _flag("--send-timeout", "Seconds a client may leave its answer unread.", CLIENTS, min=0.1),
]
CorsOrigin = Annotated[
    list[str] | None,
    _flag(
        "--cors-origin",
        "Origin of web pages that may call the API from a browser, as https://app.example.com; "
        "several times for several, `*` for every one. Without it none may.",
        CLIENTS,
    ),
]

TlsCert = Annotated[
    Path | None,
    _flag(
        "--tls-cert",
        "Certificate chain (PEM) for HTTPS to clients; needs --tls-key. Both files are read again "
        "when they change.",
        TLS,
        dir_okay=False,
    ),
]
TlsKey = Annotated[
    Path | None, _flag("--tls-key", "Its private key (PEM), not encrypted.", TLS, dir_okay=False)
]
ReplicaCaFile = Annotated[
    Path | None,
    _flag(
        "--replica-ca-file",
        "Certificate authorities (PEM) that vouch for replicas with an https URL; without it the "
        "system's do.",
        TLS,
        dir_okay=False,
    ),
]

SloTtft = Annotated[
    float,
    _flag("--slo-ttft", "Target for a stream's first byte, in seconds.", WATCHING, min=0.001),
]
SloItl = Annotated[
    float,
    _flag("--slo-itl", "Target between two tokens of a stream, in seconds.", WATCHING, min=0.0001),
]
SloOfModel = Annotated[
    list[str] | None,
    _flag(
        "--slo",
        "One model's targets; several times for several models.",
        WATCHING,
        metavar="MODEL=TTFT:ITL",
    ),
]
OtlpEndpoint = Annotated[
    str | None,
    _flag(
        "--otlp-endpoint",
        "Base URL of an OpenTelemetry collector (OTLP over HTTP). Without it, no spans.",
        WATCHING,
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
]
TraceRatio = Annotated[
    float,
    _flag(
        "--trace-ratio",
        "Part of the requests without a caller's trace that get a span.",
        WATCHING,
        min=0.0,
        max=1.0,
    ),
]
AccessLog = Annotated[
    bool,
    _flag(
        "--access-log/--no-access-log",
        "One JSON line on stdout for each request; never its body.",
        WATCHING,
    ),
]

PreStopDelay = Annotated[
    float,
    _flag(
        "--pre-stop-delay",
        "Seconds after SIGTERM in which /ready fails but connections are accepted: the time that "
        "load balancers need to notice.",
        STOPPING,
        min=0.0,
    ),
]
DrainTimeout = Annotated[
    float,
    _flag(
        "--drain-timeout", "Seconds that requests in progress get after that.", STOPPING, min=0.0
    ),
]
DrainIdle = Annotated[
    float,
    _flag(
        "--drain-idle",
        "Seconds that a connection without a request stays open then: as long as clients keep one "
        "for their next request, none of these is lost.",
        STOPPING,
        min=0.0,
    ),
]
