"""`kubectl kvasir promote`, `abort` and `retry`: words about a canary, by its annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.kubectl.cluster_options import ClusterChoice, Context, Kubeconfig, Namespace
from kvasir.cli.kubectl.model_names import complete_model

if TYPE_CHECKING:
    from kvasir.cli.kubectl.cluster_session import ClusterSession

_EPILOG = """\b
Examples:
  kubectl kvasir {word} qwen3-8b
  kubectl kvasir {word} qwen3-8b -n models --timeout 0

\b
It sets the annotation kvasir.dev/rollout with the id of the step that the canary is at, so what
comes too late does nothing. Exit status 1: there is no such step, or the operator does not follow
in time."""

Name = Annotated[
    str, typer.Argument(help="An LLMDeployment or a model.", autocompletion=complete_model)
]
Timeout = Annotated[
    float, typer.Option(min=0, help="Seconds to wait for the operator; 0 = do not wait.")
]
_SECONDS = 60.0

promote_app = typer.Typer(rich_markup_mode=None)
abort_app = typer.Typer(rich_markup_mode=None)
retry_app = typer.Typer(rich_markup_mode=None)


@promote_app.command(epilog=_EPILOG.format(word="promote"))
def promote(
    name: Name,
    skip_all: Annotated[bool, typer.Option("--all", help="Skip all steps that are left.")] = False,
    timeout: Timeout = _SECONDS,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let a model's canary go to its next step, whatever its analysis lacks yet."""
    word = "promote-all" if skip_all else "promote"
    _say(word, name, timeout, ClusterChoice(kubeconfig, context, namespace))


@abort_app.command(epilog=_EPILOG.format(word="abort"))
def abort(
    name: Name,
    timeout: Timeout = _SECONDS,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Roll a model's canary back: all requests go to the stable revision at once."""
    _say("abort", name, timeout, ClusterChoice(kubeconfig, context, namespace))


@retry_app.command(epilog=_EPILOG.format(word="retry"))
def retry(
    name: Name,
    timeout: Timeout = _SECONDS,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Begin again with a canary that was rolled back, at its first step."""
    _say("retry", name, timeout, ClusterChoice(kubeconfig, context, namespace))


def _say(word: str, name: str, timeout: float, choice: ClusterChoice) -> None:
    from kvasir.cli.kubectl.cluster_session import in_cluster
    from kvasir.cli.kubectl.rollout_words import act

    async def work(session: ClusterSession) -> str:
        return await act(session, name, word, timeout)

    print(in_cluster(choice, work))
