"""`kvasir status`, which is `kubectl kvasir status` too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvasir.cli.errors import EXIT_FAILED, EXIT_USAGE, fail
from kvasir.cli.kubectl.cluster_options import (
    AllNamespaces,
    ClusterChoice,
    Context,
    Kubeconfig,
    Namespace,
    print_data,
)

if TYPE_CHECKING:
    from kvasir.cli.deployment_status.deployment_view import DeploymentView

_WIDTH = 120
_EPILOG = """\b
Examples:
  kvasir status
  kvasir status qwen3-8b -n models -o wide
  kvasir status -A -o json | jq '.[] | select(.why) | {name, why}'

\b
The cluster is that of KUBECONFIG, ~/.kube/config, or the pod it runs in. Exit status 1: a model
that is shown is not ready."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def status(
    name: Annotated[
        str | None,
        typer.Argument(help="An LLMDeployment or a model. Default: all.", show_default=False),
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Annotated[
        Literal["json", "yaml", "wide"] | None,
        typer.Option("--output", "-o", help="Data for scripts, or more of each pod."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Show a cluster's models: workloads, pods, routers, canary, conditions, and why one is not
    ready."""
    try:
        from kvasir.cli.deployment_status.read import read_deployments
        from kvasir.cli.kubectl.cluster_session import ClusterSession, in_cluster
    except ModuleNotFoundError as error:  # as in the engines' images
        fail(f"{error.name} is not installed; install kvasir with its dependencies", EXIT_USAGE)

    async def read(session: ClusterSession) -> tuple[list[DeploymentView], str]:
        return await read_deployments(session, name), session.place

    choice = ClusterChoice(kubeconfig, context, namespace, all_namespaces)
    views, place = in_cluster(choice, read)
    if as_json or output in ("json", "yaml"):
        print_data([view.as_json() for view in views], "yaml" if output == "yaml" else "json")
    else:
        _show(views, place, is_wide=output == "wide")
    if any(view.why is not None for view in views):
        raise typer.Exit(EXIT_FAILED)


def _show(views: list[DeploymentView], place: str, *, is_wide: bool) -> None:
    from rich.console import Console

    from kvasir.cli.deployment_status.tree import WIDE_COLUMNS, make_tree

    width = WIDE_COLUMNS if is_wide else None if sys.stdout.isatty() else _WIDTH
    console = Console(width=width, highlight=False)
    if not views:
        console.print(f"There are no LLMDeployments in {place}.", markup=False)
    for view in views:
        console.print(make_tree(view, is_wide=is_wide), crop=False)
