"""`kvasir operator`: its options, checked and explained; the rest is loaded when it runs."""

from __future__ import annotations

from typing import Any

import typer

from kvasir.cli.flags import settings_from, takes_flags_of
from kvasir_operator.settings import PANELS, OperatorSettings

_EPILOG = """\b
Examples:
  kvasir operator --namespace kvasir --router-namespace kvasir --image-cpu REGISTRY/engine-cpu:TAG
  kvasir operator --watch-namespace team-a --watch-namespace team-b --no-node-reads \\
      --resource-profile default=24Gi

\b
The cluster is that of the pod it runs in, or else of KUBECONFIG (~/.kube/config).
Environment: KUBECONFIG, KVASIR_LOG_LEVEL, KVASIR_LOG_FORMAT"""

app = typer.Typer(add_completion=False)


@app.command(epilog=_EPILOG)
@takes_flags_of(OperatorSettings, panels=PANELS)
def operator(**flags: Any) -> None:
    """Keep engines, volumes and policies in the cluster as its LLMDeployments say."""
    settings = settings_from(OperatorSettings, flags)
    low, high = settings.router_min_replicas, settings.router_max_replicas
    if low > high:
        raise typer.BadParameter(
            f"--router-min-replicas {low} is above --router-max-replicas {high}; lower it or raise"
            " the other"
        )
    run_until_stopped(settings)


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
