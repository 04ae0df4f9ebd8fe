"""`kvasir router`: its options, checked and explained; the rest is loaded when it runs."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from kvasir.cli.flags import settings_from, takes_flags_of
from kvasir_router.options.option_values import check_discovery, fleet_secret
from kvasir_router.options.router_panels import PANELS, ROUTING
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.options.store_url import is_file

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
@takes_flags_of(RouterSettings, panels=PANELS)
def router(
    discovery: Annotated[
        Literal["file", "kubernetes"],
        typer.Option(
            help="Where models and replicas are learnt from: a file (--config), or a cluster: that "
            "of KUBECONFIG, or else of the pod that the router runs in.",
            rich_help_panel=ROUTING,
        ),
    ] = "file",
    **flags: Any,
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
    settings: RouterSettings = settings_from(RouterSettings, flags)
    settings = replace(settings, fleet_secret=fleet_secret(settings.fleet_secret_file))
    _check(settings, discovery)
    _run(settings)


def _check(settings: RouterSettings, discovery: str) -> None:
    """Refuse settings that are wrong together."""
    from kvasir_router.discovery.specs import PolicySpec
    from kvasir_router.policy.registry import check_policy

    check_discovery(discovery, settings.config, settings.scope.namespaces)
    options, tls = settings.policy_options, settings.tls
    for name in dict.fromkeys((settings.policy, *options)):
        try:
            check_policy(PolicySpec(name, options.get(name, {})))
        except ValueError as error:
            hint = "--policy-option" if name in options else "--policy"
            raise typer.BadParameter(str(error), param_hint=hint) from None
    if (tls.cert is None) != (tls.key is None):
        raise typer.BadParameter(
            "a certificate and its key go together: give both or neither",
            param_hint="--tls-cert / --tls-key",
        )
    _check_picker(settings)
    stores = ("--response-store", settings.responses.url), ("--spend-store", settings.spend.url)
    for option, url in stores:
        if settings.routers > 1 and url and is_file(url):
            raise typer.BadParameter(
                f"{settings.routers} routers (--routers) cannot share a file; use redis://",
                param_hint=option,
            )
    if settings.port == settings.admin_port != 0:
        raise typer.BadParameter(
            f"{settings.port} is the API's port (--port) too; give one of them another",
            param_hint="--admin-port",
        )


def _check_picker(settings: RouterSettings) -> None:
    picker = settings.picker
    if (picker.cert is None) != (picker.key is None):
        raise typer.BadParameter(
            "a certificate and its key go together: give both or neither",
            param_hint="--endpoint-picker-cert / --endpoint-picker-key",
        )
    if picker.port and picker.port in (settings.port, settings.admin_port):
        option = "--port" if picker.port == settings.port else "--admin-port"
        raise typer.BadParameter(
            f"{picker.port} is that of {option} too; give one of them another",
            param_hint="--endpoint-picker-port",
        )


def _run(settings: RouterSettings) -> None:
    import uvloop

    from kvasir.certificates import TlsError
    from kvasir.cli.errors import EXIT_FAILED, EXIT_USAGE
    from kvasir.logs import LogSettingError, configure_logging
    from kvasir_router.discovery.specs import DiscoveryError
    from kvasir_router.process.client_port import ListenError
    from kvasir_router.process.single_process import serve
    from kvasir_router.store_error import StoreError
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
    except (DiscoveryError, YamlFileError, LogSettingError, TlsError, StoreError) as error:
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
