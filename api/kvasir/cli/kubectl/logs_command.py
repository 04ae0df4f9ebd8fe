"""`kubectl kvasir logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvasir.cli.errors import EXIT_USAGE, fail
from kvasir.cli.kubectl.cluster_options import ClusterChoice, Context, Kubeconfig, Namespace
from kvasir.cli.kubectl.model_names import complete_model

if TYPE_CHECKING:
    from kvasir.cli.kubectl.cluster_session import ClusterSession

_EPILOG = """\b
Examples:
  kubectl kvasir logs qwen3-8b
  kubectl kvasir logs qwen3-8b -n models -f --tail 10
  kubectl kvasir logs qwen3-8b --previous --component engine

\b
With -f it goes on with pods that come and containers that start again, until Ctrl-C. Without it
each pod's log comes as a whole, one after the other."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def logs(
    name: Annotated[
        str, typer.Argument(help="An LLMDeployment or a model.", autocompletion=complete_model)
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the run before the last restart.")
    ] = False,
    prefix: Annotated[
        bool | None,
        typer.Option(
            "--prefix/--no-prefix",
            help="Begin each line with its pod. Default: where there are several, or with -f.",
        ),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Begin each line with its time.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Last lines of each. Default: all.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Lines that are younger: 90s, 10m, 2h.")
    ] = None,
    component: Annotated[
        Literal["engine", "download"] | None,
        typer.Option(help="Of these pods alone. Default: all pods of the model."),
    ] = None,
    container: Annotated[
        str | None, typer.Option("--container", "-c", help="Default: all containers of a pod.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the logs of all pods of a model."""
    from kvasir.cli.kubectl.cluster_session import in_cluster
    from kvasir.cli.kubectl.model_logs import LogChoice, parse_duration, print_logs

    if follow and previous:
        fail("--previous is over, so there is nothing to follow; leave out -f", EXIT_USAGE)
    try:
        seconds = None if since is None else parse_duration(since)
    except ValueError as error:
        fail(f"--since: {error}", EXIT_USAGE)
    choice = LogChoice(component, container, prefix, timestamps, previous, follow, tail, seconds)

    async def work(session: ClusterSession) -> None:
        await print_logs(session, name, choice)

    in_cluster(ClusterChoice(kubeconfig, context, namespace), work)
