"""`kvasir router`: its options, checked and explained; the rest is loaded when it runs."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvasir_router.scaling.signals import Slo
    from kvasir_router.settings import RouterSettings

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

SECRET_VARIABLE = "KVASIR_FLEET_SECRET"  # noqa: S105 - the name of a variable


@app.command()
def router(
    config: Annotated[
        Path,
        typer.Option(
            help="Discovery file (YAML): models, their aliases and their replicas' URLs. "
            "It is read again when it changes; a bad one is reported and the last good one stays.",
            envvar="KVASIR_ROUTER_CONFIG",
            dir_okay=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API.")] = 8080,
    admin_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port for operators: a page at /, /metrics, /scaling."),
    ] = 8081,
    policy: Annotated[
        str,
        typer.Option(
            help="How a replica is chosen, where the discovery file does not say: kv_aware, "
            "least_load, round_robin, prefix_hash or session."
        ),
    ] = "kv_aware",
    fleet_secret_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File with the secret that engines know routers by. "
            f"Without it, the environment variable {SECRET_VARIABLE} is used.",
        ),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            envvar="KVASIR_KEYS_FILE",
            help="API keys, made by `kvasir keys create`; read again when it changes. With it, "
            "requests without a known key are refused; without it, everybody may use everything.",
        ),
    ] = None,
    routers: Annotated[
        int,
        typer.Option(
            min=1, help="Routers that share the clients: each enforces its part of limits."
        ),
    ] = 1,
    max_waiting: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests that wait for each model when no replica may take them; 0 = none waits.",
        ),
    ] = 1024,
    queue_timeout: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds a request waits while all replicas are full; then 429."
        ),
    ] = 30.0,
    hold_timeout: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds it waits while the model has no replica; then 503."),
    ] = 60.0,
    engine_queue: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests that may wait inside one engine, where who came first goes first; the "
            "others wait in the router, in order of priority and fair to tenants. 0 = no bound.",
        ),
    ] = 4,
    slo_ttft: Annotated[
        float, typer.Option(min=0.001, help="Target for a stream's first byte, in seconds.")
    ] = 2.0,
    slo_itl: Annotated[
        float, typer.Option(min=0.0001, help="Target between two tokens of a stream, in seconds.")
    ] = 0.1,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=TTFT:ITL", help="One model's targets; several times for several models."
        ),
    ] = None,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            help="Base URL of an OpenTelemetry collector (OTLP over HTTP). Without it, no spans.",
        ),
    ] = None,
    trace_ratio: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Part of the requests without a caller's trace."),
    ] = 1.0,
    access_log: Annotated[
        bool, typer.Option(help="One JSON line on stdout for each request; never its body.")
    ] = True,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Certificate chain (PEM) for HTTPS to clients; needs --tls-key. Both files are "
            "read again when they change.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Its private key (PEM), not encrypted.")
    ] = None,
    replica_ca_file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Certificate authorities (PEM) that vouch for replicas with an https URL; "
            "without it the system's do.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Origin of web pages that may call the API from a browser, as "
            "https://app.example.com; several times for several, `*` for every one. "
            "Without it none may."
        ),
    ] = None,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, help="Larger request bodies are answered 413.")
    ] = 64 * 1024 * 1024,
    max_header_bytes: Annotated[
        int, typer.Option(min=1024, help="Larger request headers are answered 431.")
    ] = 32 * 1024,
    max_headers: Annotated[
        int, typer.Option(min=8, help="Requests with more headers are answered 431.")
    ] = 100,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Client connections; one more is answered 503.")
    ] = 10_000,
    max_in_flight: Annotated[
        int, typer.Option(min=1, help="Requests to one replica; when all are full: 429.")
    ] = 2048,
    header_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a request's whole header to arrive.")
    ] = 10.0,
    body_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a byte of a request's body.")
    ] = 30.0,
    keep_alive_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds an idle client connection stays open.")
    ] = 75.0,
    send_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds a client may leave its answer unread.")
    ] = 300.0,
    connect_timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds to connect to a replica.")
    ] = 2.0,
    probe_interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between probes of a replica's /ready.")
    ] = 1.0,
    probe_timeout: Annotated[float, typer.Option(min=0.01, help="Seconds for one probe.")] = 1.0,
    pre_stop_delay: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds after SIGTERM in which /ready fails but connections are accepted: "
            "the time that load balancers need to notice.",
        ),
    ] = 0.0,
    drain_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds that requests in progress get after that.")
    ] = 30.0,
) -> None:
    """Route OpenAI API requests to the replicas of the models they name.

    A request goes to the replica that already holds most of its prompt's KV cache, unless that one
    is busier than another is slow; streams are passed on as they come, and a request whose replica
    fails goes to another one.

    A discovery file:

        models:
          - name: kvasir-tiny
            aliases: [tiny]
            replicas:
              - id: r0                      # kvasir serve --port 8000 --grpc-port 8001
                url: "http://127.0.0.1:8000"
                grpc_port: 8001             # its load, pushed, and which text its KV stands for
                kv_events: "tcp://127.0.0.1:5557"
                kv_replay: "tcp://127.0.0.1:5558"
          - name: other
            policy: session                 # instead of --policy
            adapters: [other-sql]           # LoRA adapters, each a name for clients
            replicas:
              - {id: r0, url: "http://10.0.0.7:8000", engine: vllm}   # or sglang, openai
        canaries:
          - {name: chat, split: {kvasir-tiny: 95, other: 5}}          # a user stays with one
    """
    from kvasir_router.admission.line import Waiting
    from kvasir_router.policy.registry import POLICIES
    from kvasir_router.proxy.http import Limits
    from kvasir_router.scaling.signals import Slo
    from kvasir_router.settings import Probing, RouterSettings, Timeouts, Tls

    if policy not in POLICIES:
        raise typer.BadParameter(
            f"{policy!r} is not a policy; use one of {', '.join(POLICIES)}",
            param_hint="--policy",
        )
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter(
            "a certificate and its key go together: give both or neither",
            param_hint="--tls-cert / --tls-key",
        )
    settings = RouterSettings(
        config=config,
        host=host,
        port=port,
        admin_port=admin_port,
        policy=policy,
        limits=Limits(
            header_bytes=max_header_bytes, headers=max_headers, body_bytes=max_body_bytes
        ),
        timeouts=Timeouts(
            header=header_timeout,
            body=body_timeout,
            keep_alive=keep_alive_timeout,
            send=send_timeout,
            connect=connect_timeout,
        ),
        probing=Probing(interval=probe_interval, timeout=probe_timeout),
        tls=Tls(cert=tls_cert, key=tls_key, replica_ca=replica_ca_file),
        cors_origins=tuple(cors_origin or ()),
        keys_file=keys_file,
        routers=routers,
        waiting=Waiting(requests=max_waiting, timeout=queue_timeout, hold=hold_timeout),
        engine_queue=engine_queue,
        slo=Slo(slo_ttft, slo_itl),
        slo_by_model=_slo_by_model(slo or ()),
        otlp_endpoint=_http_url(otlp_endpoint),
        trace_ratio=trace_ratio,
        max_connections=max_connections,
        max_in_flight=max_in_flight,
        pre_stop_delay=pre_stop_delay,
        drain_timeout=drain_timeout,
        fleet_secret=_fleet_secret(fleet_secret_file),
        access_log=access_log,
    )
    _run(settings)


def _run(settings: "RouterSettings") -> None:
    import uvloop

    from kvasir.logs import LogSettingError, configure_logging
    from kvasir_router.discovery.base import DiscoveryError
    from kvasir_router.server import serve
    from kvasir_router.tls import TlsError
    from kvasir_router.yaml_file import YamlFileError

    try:
        configure_logging("router")
        uvloop.run(serve(settings))
    except (DiscoveryError, YamlFileError, LogSettingError, TlsError, OSError) as error:
        message = error.strerror if isinstance(error, OSError) else None
        typer.echo(f"kvasir router: {message or error}", err=True)
        raise typer.Exit(1) from None


def _slo_by_model(targets: Iterable[str]) -> "dict[str, Slo]":
    """From `MODEL=TTFT:ITL`. Raises typer.BadParameter."""
    from kvasir_router.scaling.signals import Slo

    result = {}
    for target in targets:
        found = re.fullmatch(r"(.+)=([0-9.]+):([0-9.]+)", target)
        try:
            if found is None:
                raise ValueError
            result[found[1]] = Slo(float(found[2]), float(found[3]))
        except ValueError:
            raise typer.BadParameter(
                f"{target!r} is not of the form MODEL=TTFT:ITL, as llama=1.5:0.05",
                param_hint="--slo",
            ) from None
    return result


def _http_url(url: str | None) -> str | None:
    """The URL as it is; empty counts as none. Raises typer.BadParameter."""
    if url and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(
            f"{url!r} must begin with http:// or https://, as http://127.0.0.1:4318",
            param_hint="--otlp-endpoint",
        )
    return url or None


def _fleet_secret(path: Path | None) -> str | None:
    """From the file, else from the environment. Raises typer.BadParameter."""
    if path is None:
        secret = os.environ.get(SECRET_VARIABLE, "")
    else:
        secret = path.read_text(encoding="utf-8").strip()
    if not secret:
        return None
    if not secret.isascii() or not secret.isprintable():
        raise typer.BadParameter("the fleet secret must be printable ASCII without line breaks")
    return secret
