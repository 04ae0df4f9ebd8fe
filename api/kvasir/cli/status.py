"""`kvasir status`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.errors import EXIT_FAILED, EXIT_USAGE, fail

if TYPE_CHECKING:
    from kvasir.cli.deployment_status.deployment_view import DeploymentView

_WIDTH = 120
_EPILOG = """\b
Examples:
  kvasir status
  kvasir status qwen3-8b -n models
  kvasir status -A --json | jq '.[] | select(.why) | {name, why}'

\b
The cluster is that of KUBECONFIG, ~/.kube/config, or the pod it runs in. Exit status 1: a model
that is shown is not ready."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def status(
    name: Annotated[
        str | None, typer.Argument(help="An LLMDeployment. Default: all.", show_default=False)
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Default: the kubeconfig's.")
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of every namespace.")
    ] = False,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a cluster's models: pods, cache, conditions, and why one is not ready."""
    from kvasir.kube import AccessError

    try:
        from kvasir.cli.deployment_status.read import StatusError, read_deployments
    except ModuleNotFoundError as error:  # as in the engines' images
        fail(f"{error.name} is not installed; install kvasir with its dependencies", EXIT_USAGE)
    if namespace is not None and all_namespaces:
        fail("give either --namespace or --all-namespaces", EXIT_USAGE)
    try:
        views, place = asyncio.run(
            read_deployments(context, namespace, name, everywhere=all_namespaces)
        )
    except AccessError as error:
        fail(f"no cluster to ask: {error}", EXIT_USAGE)
    except StatusError as error:
        fail(error)
    if as_json:
        print(json.dumps([view.as_json() for view in views], indent=2))
    else:
        _show(views, place)
    if any(view.why is not None for view in views):
        raise typer.Exit(EXIT_FAILED)


def _show(views: list[DeploymentView], namespace: str | None) -> None:
    from rich.console import Console

    from kvasir.cli.deployment_status.tree import make_tree

    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    if not views:
        place = f"namespace {namespace}" if namespace else "the cluster"
        console.print(f"There are no LLMDeployments in {place}.", markup=False)
    for view in views:
        console.print(make_tree(view))
