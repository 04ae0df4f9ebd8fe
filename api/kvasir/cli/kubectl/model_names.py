"""Names of a cluster's LLMDeployments, for the shell's completion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer

from kvasir.cli.kubectl.cluster_options import ClusterChoice

_SECONDS = 3.0
"""Time that a person with a finger on the tabulator waits for."""


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the LLMDeployments that begin so, in the namespace that the command line names; none
    where the cluster does not answer in time."""
    given = ctx.params
    file = given.get("kubeconfig")
    choice = ClusterChoice(
        Path(file) if file else None, given.get("context"), given.get("namespace")
    )
    try:
        names = asyncio.run(_names(choice))
    except Exception:  # a message would be taken for a name
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _names(choice: ClusterChoice) -> list[str]:
    from kvasir.cli.kubectl.cluster_session import open_session
    from kvasir.kube.objects import name_of

    async with asyncio.timeout(_SECONDS), open_session(choice) as session:
        return sorted(map(name_of, await session.deployments()))
