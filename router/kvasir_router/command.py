"""`kvasir router`: its options, checked and explained; the rest is loaded when it runs."""

from typing import TYPE_CHECKING

import typer

from kvasir_router.options import flags

if TYPE_CHECKING:
    from kvasir_router.options.router_settings import RouterSettings

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def router(
    config: flags.Config = None,
    discovery: flags.Discovery = "file",
    watch_namespace: flags.WatchNamespace = None,
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 8080,
    admin_port: flags.AdminPort = 8081,
    workers: flags.Workers = 1,
    policy: flags.Policy = "kv_aware",
    fleet_secret_file: flags.FleetSecretFile = None,
    max_in_flight: flags.MaxInFlight = 2048,
    policy_option: flags.PolicyOption = None,
    engine_queue: flags.EngineQueue = 4,
    scrape_interval: flags.ScrapeInterval = 1.0,
    tokenizer_processes: flags.TokenizerProcesses = 1,
    tokenizer_deadline: flags.TokenizerDeadline = 0.005,
    probe_interval: flags.ProbeInterval = 1.0,
    probe_timeout: flags.ProbeTimeout = 1.0,
    connect_timeout: flags.ConnectTimeout = 2.0,
    request_timeout: flags.RequestTimeout = None,
    migration: flags.Migration = True,
    max_moves: flags.MaxMoves = 3,
    migration_stream_bytes: flags.StreamBytes = 4 * 1024 * 1024,
    migration_total_bytes: flags.StreamsBytes = 256 * 1024 * 1024,
    hedging: flags.Hedging = False,
    keys_file: flags.KeysFile = None,
    routers: flags.Routers = 1,
    routers_dns: flags.RoutersDNS = None,
    max_waiting: flags.MaxWaiting = 1024,
    queue_timeout: flags.QueueTimeout = 30.0,
    hold_timeout: flags.HoldTimeout = 60.0,
    max_body_bytes: flags.MaxBodyBytes = 64 * 1024 * 1024,
    max_buffered_bytes: flags.MaxBufferedBytes = 512 * 1024 * 1024,
    max_header_bytes: flags.MaxHeaderBytes = 32 * 1024,
    max_headers: flags.MaxHeaders = 100,
    max_connections: flags.MaxConnections = 10_000,
    header_timeout: flags.HeaderTimeout = 10.0,
    body_timeout: flags.BodyTimeout = 30.0,
    min_body_rate: flags.BodyRate = 8192.0,
    keep_alive_timeout: flags.KeepAliveTimeout = 75.0,
    send_timeout: flags.SendTimeout = 300.0,
    cors_origin: flags.CorsOrigin = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    replica_ca_file: flags.ReplicaCaFile = None,
    slo_ttft: flags.SloTtft = 2.0,
    slo_itl: flags.SloItl = 0.1,
    slo: flags.SloOfModel = None,
    otlp_endpoint: flags.OtlpEndpoint = None,
    trace_ratio: flags.TraceRatio = 1.0,
    access_log: flags.AccessLog = True,
    pre_stop_delay: flags.PreStopDelay = 0.0,
    drain_timeout: flags.DrainTimeout = 30.0,
    drain_idle: flags.DrainIdle = 2.0,
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
          - name: llama
            tokenizer: meta-llama/Llama-3.1-8B-Instruct   # or a directory
            replicas:                                     # whose KV events count with it
              - {id: r0, url: "http://10.0.0.8:8000", engine: vllm, kv_events: "tcp://10.0.0.8:5557"}
        canaries:
          - {name: chat, split: {kvasir-tiny: 95, other: 5}}          # a user stays with one
    """
    from kvasir_router.discovery.specs import PolicySpec
    from kvasir_router.options import option_values as values
    from kvasir_router.options import router_settings as s
    from kvasir_router.options.tokenizing_settings import TokenizingSettings
    from kvasir_router.policy.registry import check_policy
    from kvasir_router.wire.http_request import Limits

    policy_options = values.policy_options(policy_option or ())
    for name in dict.fromkeys((policy, *policy_options)):
        hint = "--policy-option" if name in policy_options else "--policy"
        try:
            check_policy(PolicySpec(name, policy_options.get(name, {})))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=hint) from None
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter(
            "a certificate and its key go together: give both or neither",
            param_hint="--tls-cert / --tls-key",
        )
    if port == admin_port != 0:
        raise typer.BadParameter(
            f"{port} is the API's port (--port) too; give one of them another",
            param_hint="--admin-port",
        )
    settings = s.RouterSettings(
        config=values.discovery_file(discovery, config),
        watch_namespaces=values.namespaces(discovery, watch_namespace or ()),
        host=host,
        port=port,
        admin_port=admin_port,
        workers=workers,
        policy=policy,
        policy_options=policy_options,
        limits=Limits(
            header_bytes=max_header_bytes,
            headers=max_headers,
            body_bytes=max_body_bytes,
            buffered_bytes=max_buffered_bytes,
        ),
        timeouts=s.Timeouts(
            header=header_timeout,
            body=body_timeout,
            body_rate=min_body_rate,
            keep_alive=keep_alive_timeout,
            send=send_timeout,
            connect=connect_timeout,
        ),
        probing=s.Probing(interval=probe_interval, timeout=probe_timeout),
        failover=s.Failover(
            request_timeout=request_timeout,
            migration=migration,
            max_moves=max_moves,
            stream_bytes=migration_stream_bytes,
            streams_bytes=migration_total_bytes,
            hedging=hedging,
        ),
        feeding=s.Feeding(scrape_interval=scrape_interval),
        tokenizing=TokenizingSettings(tokenizer_processes, tokenizer_deadline),
        tls=s.Tls(cert=tls_cert, key=tls_key, replica_ca=replica_ca_file),
        cors_origins=values.origins(cors_origin or ()),
        keys_file=keys_file,
        routers=routers,
        routers_dns=routers_dns,
        waiting=s.QueueLimits(requests=max_waiting, timeout=queue_timeout, hold=hold_timeout),
        engine_queue=engine_queue,
        slo=s.Slo(slo_ttft, slo_itl),
        slo_by_model=values.slo_by_model(slo or ()),
        otlp_endpoint=values.http_url(otlp_endpoint),
        trace_ratio=trace_ratio,
        max_connections=max_connections,
        max_in_flight=max_in_flight,
        pre_stop_delay=pre_stop_delay,
        drain_timeout=drain_timeout,
        drain_idle=drain_idle,
        fleet_secret=values.fleet_secret(fleet_secret_file),
        access_log=access_log,
    )
    _run(settings)


def _run(settings: "RouterSettings") -> None:
    import uvloop

    from kvasir.cli.errors import EXIT_FAILED, EXIT_USAGE
    from kvasir.logs import LogSettingError, configure_logging
    from kvasir_router.discovery.specs import DiscoveryError
    from kvasir_router.process.client_port import ListenError
    from kvasir_router.process.single_process import serve
    from kvasir_router.wire.tls import TlsError
    from kvasir_router.yaml_file import YamlFileError

    try:
        configure_logging("router")
        _look_at_form()
        if settings.workers > 1:
            from kvasir_router.workers.start_workers import supervise

            raise typer.Exit(supervise(settings))
        uvloop.run(serve(settings))
    except ListenError as error:
        typer.echo(f"kvasir router: {error.strerror}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    except (DiscoveryError, YamlFileError, LogSettingError, TlsError) as error:
        typer.echo(f"kvasir router: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    except OSError as error:
        typer.echo(f"kvasir router: {error.strerror or error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None


def _look_at_form() -> None:
    import structlog

    from kvasir_router import compiled

    if compiled.is_outdated():
        structlog.get_logger("kvasir_router").warning(
            "the compiled modules are those of other sources: these run as they are, at more CPU "
            "time a request; compile them again",
            folder=str(compiled.FOLDER),
        )
