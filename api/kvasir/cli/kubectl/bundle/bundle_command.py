"""`kubectl kvasir support-bundle`."""

from __future__ import annotations

import os
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.errors import EXIT_USAGE, fail
from kvasir.cli.kubectl.cluster_options import (
    AllNamespaces,
    ClusterChoice,
    Context,
    Kubeconfig,
    Namespace,
)
from kvasir.cli.kubectl.model_names import complete_model

if TYPE_CHECKING:
    from kvasir.cli.kubectl.cluster_session import ClusterSession

_EPILOG = """\b
Examples:
  kubectl kvasir support-bundle -A
  kubectl kvasir support-bundle qwen3-8b -n models --to /tmp/qwen3.tar.gz

\b
Objects, events, logs, status and metrics of models, routers and operator. Secrets are not read;
values of variables, keys, tokens and what clients wrote are replaced by REDACTED. Look through it
before you hand it on."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def support_bundle(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An LLMDeployment or a model. Default: all.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: kvasir-support-TIME.tar.gz, here."),
    ] = None,
    logs: Annotated[bool, typer.Option("--logs/--no-logs", help="Logs of containers.")] = True,
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Metrics of pods, by the API server.")
    ] = True,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Write what is needed to look into a problem into one file, without secrets and prompts."""
    from kvasir.cli.kubectl.bundle.support_bundle import SupportBundle
    from kvasir.cli.kubectl.cluster_session import in_cluster

    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    path = to or Path(f"kvasir-support-{now}.tar.gz")

    async def work(session: ClusterSession) -> list[str]:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as it:
            bundle = SupportBundle(session, it, logs=logs, metrics=metrics)
            await bundle.collect(name)
        return bundle.errors

    is_ours = not path.exists()
    try:
        errors = in_cluster(ClusterChoice(kubeconfig, context, namespace, all_namespaces), work)
    except FileExistsError:
        fail(f"{path} exists; remove it, or name another file with --to", EXIT_USAGE)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    except BaseException:
        if is_ours:
            path.unlink(missing_ok=True)  # half of one
        raise
    print(path)
    if errors:
        print(
            f"{len(errors)} things could not be read; errors.txt in it names them", file=sys.stderr
        )
