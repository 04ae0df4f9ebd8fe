"""`kubectl kvasir plan`."""

from __future__ import annotations

from pathlib import Path
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

if TYPE_CHECKING:
    from kvasir.cli.kubectl.cluster_session import ClusterSession
    from kvasir_operator.edits.edit_effect import EditEffect

_EPILOG = """\b
Examples:
  kubectl kvasir plan -f qwen3-8b.yaml
  kubectl kvasir plan -f models.yaml -n models -o json

\b
By the operator's own plan, of the LLMDeployment as it is and as the file has it; nothing is
changed. Exit status 1: the edit is refused."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def plan(
    file: Annotated[
        Path, typer.Option("--filename", "-f", help="LLMDeployments as they shall be.")
    ],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = None,
) -> None:
    """Say what applying a file restarts, starts, stops and downloads."""
    from kvasir.cli.deployment_option import read_deployments
    from kvasir.cli.kubectl.cluster_session import in_cluster
    from kvasir.cli.printable import printable
    from kvasir.resource.yaml_documents import read_documents
    from kvasir_operator.edits.edit_effect import effect_of
    from kvasir_operator.edits.live_state import read_state

    read_deployments(file)  # ends the command where the file itself is wrong
    documents = [each for each in read_documents(file.read_text(encoding="utf-8")) if each]

    async def work(session: ClusterSession) -> list[EditEffect]:
        return [effect_of(*await read_state(session, each)) for each in documents]

    effects = in_cluster(ClusterChoice(kubeconfig, context, namespace), work)
    if output is not None:
        print_data([each.as_json() for each in effects], output)
    else:
        for each in effects:
            print(printable(_text(each)))
    if any(each.refused is not None for each in effects):
        raise typer.Exit(EXIT_FAILED)


def _text(effect: EditEffect) -> str:
    lines = [f"{effect.title}."]
    for title, told in (("of each pod", effect.pod_changes), ("objects", effect.objects)):
        if told:
            lines += [f"  {title}:", *(f"    {each}" for each in told)]
    return "\n".join(lines)
