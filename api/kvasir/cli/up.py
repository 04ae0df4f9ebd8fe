"""`kvasir up`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kvasir.cli.deployment_option import read_deployments
from kvasir.cli.errors import EXIT_USAGE, fail

_EPILOG = """\b
Examples:
  kvasir up -f manifests/tiny.yaml
  kvasir up -f manifests/two-models.yaml --port 9000 --log-dir ./logs

\b
Each replica is a `kvasir serve` process on a free port of 127.0.0.1. A replica that
dies is started again. Ctrl-C lets running requests finish and leaves no process behind.

\b
Environment: KVASIR_API_KEY (asked of clients when set), OMP_NUM_THREADS (cores / engines
by default), CUDA_VISIBLE_DEVICES (GPUs to give out), KVASIR_LOG_LEVEL, KVASIR_LOG_FORMAT"""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def up(
    file: Annotated[
        Path, typer.Option("--file", "-f", help="LLMDeployments to serve, as YAML documents.")
    ],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the router.")] = 8080,
    host: Annotated[str, typer.Option(help="Address that the router listens on.")] = "127.0.0.1",
    log_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of up.log.", show_default="~/.local/state/kvasir/up-PORT"),
    ] = None,
) -> None:
    """Serve the models of an LLMDeployment file: an engine for each replica, and a router."""
    deployments = read_deployments(file)
    if not any(each.spec.replicas or each.spec.external for each in deployments):
        fail(f"{file}: every spec.replicas is 0; nothing to start", EXIT_USAGE)

    from kvasir.cli.local.cluster_only import cluster_only
    from kvasir.cli.local.gpu_assignment import GPUShortageError
    from kvasir.cli.local.process_supervisor import FleetError
    from kvasir.cli.local.run_local import default_log_dir, run
    from kvasir.cli.local.upstreams import unknown_fallbacks

    problems = [problem for each in deployments for problem in cluster_only(each)]
    if problems := [*problems, *unknown_fallbacks(deployments)]:
        fail("\n".join(problems), EXIT_USAGE)

    try:
        asyncio.run(
            run(deployments, host=host, port=port, log_dir=log_dir or default_log_dir(port))
        )
    except (FleetError, GPUShortageError, OSError) as error:
        fail(error)
