"""`kubectl kvasir why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.errors import EXIT_FAILED
from kvasir.cli.kubectl.cluster_options import (
    ClusterChoice,
    Context,
    Kubeconfig,
    Namespace,
    Output,
    print_data,
)
from kvasir.cli.kubectl.model_names import complete_model

if TYPE_CHECKING:
    from kvasir.cli.kubectl.cluster_session import ClusterSession
    from kvasir.cli.kubectl.explanation import Explanation

_EPILOG = """\b
Examples:
  kubectl kvasir why qwen3-8b
  kubectl kvasir why qwen3-8b -n models -o json

\b
The condition that stands in the way, then its workload, its pod, the container and the last line
that it said. Exit status 1: the model is not ready."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def why(
    name: Annotated[
        str, typer.Argument(help="An LLMDeployment or a model.", autocompletion=complete_model)
    ],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = None,
) -> None:
    """Say in one paragraph why a model is not ready, and what to do."""
    from kvasir.cli.kubectl.cluster_session import in_cluster
    from kvasir.cli.kubectl.explanation import explain_model

    async def ask(session: ClusterSession) -> Explanation:
        return await explain_model(session, name)

    found = in_cluster(ClusterChoice(kubeconfig, context, namespace), ask)
    if output is None:
        print(found.paragraph)
    else:
        print_data(found.as_json(), output)
    if not found.ready:
        raise typer.Exit(EXIT_FAILED)
