"""`kvasir operator`: its options, checked and explained; the rest is loaded when it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvasir_operator.settings import OperatorSettings

_EPILOG = """\b
Examples:
  kvasir operator --namespace kvasir --router-namespace kvasir --image-cpu REGISTRY/engine-cpu:TAG
  kvasir operator --watch-namespace team-a --watch-namespace team-b --no-node-reads \\
      --resource-profile default=24Gi

\b
The cluster is that of the pod it runs in, or else of KUBECONFIG (~/.kube/config).
Environment: KUBECONFIG, KVASIR_LOG_LEVEL, KVASIR_LOG_FORMAT"""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def operator(
    watch_namespace: Annotated[
        list[str] | None,
        typer.Option(help="Namespace of LLMDeployments to serve; repeatable.", show_default="all"),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the operator.")] = "default",
    router_namespace: Annotated[
        str, typer.Option(help="Namespace of the routers.", show_default="--namespace")
    ] = "",
    router_url: Annotated[
        str, typer.Option(help="URL of the routers for clients, shown in each status.")
    ] = "",
    router_admin_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port on which routers say whom they serve.")
    ] = 8081,
    router_admin_service: Annotated[
        str, typer.Option(help="Service of that port, by which KEDA finds the routers.")
    ] = "kvasir-router-admin",
    image_cpu: Annotated[str, typer.Option(help="Engine image for CPUs.")] = "",
    image_cuda: Annotated[str, typer.Option(help="Engine image for NVIDIA GPUs.")] = "",
    image_sim: Annotated[str, typer.Option(help="Engine image for simulated devices.")] = "",
    image_pull_secret: Annotated[
        list[str] | None,
        typer.Option(help="Secret that engine pods pull images with; repeatable."),
    ] = None,
    fleet_secret_file: Annotated[
        Path | None,
        typer.Option(help="File with the secret that routers and engines share.", dir_okay=False),
    ] = None,
    resync_seconds: Annotated[
        float, typer.Option(min=1, help="Each LLMDeployment is checked again after this time.")
    ] = 300.0,
    node_reads: Annotated[
        bool,
        typer.Option("--node-reads/--no-node-reads", help="Read GPU memory from nodes' labels."),
    ] = True,
    resource_profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRODUCT=MEMORY",
            help="Memory of a GPU product, such as NVIDIA-L40S=48Gi or default=24Gi; repeatable.",
        ),
    ] = None,
    download_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Environment variable of downloads, such as HTTPS_PROXY; repeatable.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address that the ports below listen on.")] = "0.0.0.0",
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /metrics, /healthz and /readyz.")
    ] = 8080,
    external_metrics_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Serve external.metrics.k8s.io over TLS here; 0 = do not."
        ),
    ] = 0,
    external_metrics_service: Annotated[
        str, typer.Option(help="Service by which the API server reaches that port.")
    ] = "kvasir-operator",
    lease_name: Annotated[
        str, typer.Option(help="Lease that only one operator at a time holds.")
    ] = "kvasir-operator",
    lease_seconds: Annotated[
        float, typer.Option(min=2, help="How long an operator that died keeps it.")
    ] = 15.0,
) -> None:
    """Keep engines, volumes and policies in the cluster as its LLMDeployments say."""
    from kvasir_operator.settings import Images, OperatorSettings

    run_until_stopped(
        OperatorSettings(
            namespace=namespace,
            watch_namespaces=tuple(watch_namespace or ()),
            router_namespace=router_namespace or namespace,
            router_url=router_url,
            router_admin_port=router_admin_port,
            router_admin_service=router_admin_service,
            images=Images(cpu=image_cpu, cuda=image_cuda, sim=image_sim),
            image_pull_secrets=tuple(image_pull_secret or ()),
            fleet_secret=_secret(fleet_secret_file),
            resync_seconds=resync_seconds,
            node_reads=node_reads,
            resource_profiles=dict(_profile(each) for each in resource_profile or ()),
            download_env=dict(_variable(each) for each in download_env or ()),
            host=host,
            metrics_port=metrics_port,
            external_metrics_port=external_metrics_port,
            external_metrics_service=external_metrics_service,
            lease_name=lease_name,
            lease_seconds=lease_seconds,
        )
    )


def _secret(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    if not secret:
        raise typer.BadParameter(f"{file} is empty; write the fleet's secret into it")
    return secret


def _profile(text: str) -> tuple[str, int]:
    from kvasir.quantity import parse_bytes

    name, equals, memory = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--resource-profile {text!r} is not of the form PRODUCT=MEMORY")
    try:
        return name, parse_bytes(memory)
    except ValueError as error:
        raise typer.BadParameter(f"--resource-profile {text!r}: {error}") from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise typer.BadParameter(f"--download-env {text!r} is not of the form NAME=VALUE")
    return name, value


def run_until_stopped(settings: OperatorSettings) -> None:
    """The process's work. Raises typer.Exit when it cannot go on, after it has said why."""
    import asyncio

    from kvasir.logs import LogSettingError, configure_logging
    from kvasir_operator.run import OperatorError, run

    try:
        configure_logging("operator")
        asyncio.run(run(settings))
    except (OperatorError, LogSettingError, OSError) as error:
        typer.echo(f"kvasir operator: {error}", err=True)
        raise typer.Exit(1) from None
