"""`kubectl kvasir chat`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.errors import EXIT_USAGE, fail
from kvasir.cli.kubectl.cluster_options import ClusterChoice, Context, Kubeconfig, Namespace
from kvasir.cli.kubectl.model_names import complete_model

if TYPE_CHECKING:
    from kvasir.cli.kubectl.cluster_session import ClusterSession
    from kvasir.cli.kubectl.router_chat.chat_target import ChatTarget

_EPILOG = """\b
Examples:
  kubectl kvasir chat qwen3-8b
  kubectl kvasir chat qwen3-8b -n models --key-secret my-key
  echo 'Sort: 3 1 2' | kubectl kvasir chat qwen3-8b --temperature 0

\b
Through the router, whose port kubectl forwards. In the conversation: /reset forgets it, /exit or
Ctrl-D leaves, Ctrl-C stops an answer. When input is no terminal, all of it is one message."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def chat(
    name: Annotated[
        str, typer.Argument(help="An LLMDeployment or a model.", autocompletion=complete_model)
    ],
    key_secret: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET[/ENTRY]", help="Secret in the model's namespace with the router's key."
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="KVASIR_API_KEY", help="Key for the router.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest token.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Talk to a model in the terminal, through the cluster's router."""
    from kvasir.cli.chat import converse
    from kvasir.cli.conversation.chat_client import AddressError, ChatClient, ChatError, ChatOptions
    from kvasir.cli.kubectl.cluster_session import in_cluster
    from kvasir.cli.kubectl.router_chat.chat_target import find_target
    from kvasir.cli.kubectl.router_chat.port_forward import PortForwardError, forwarded

    choice = ClusterChoice(kubeconfig, context, namespace)

    async def find(session: ClusterSession) -> ChatTarget:
        return await find_target(session, name, key_secret)

    target = in_cluster(choice, find)
    try:
        with forwarded(choice.kubectl(), target.namespace, target.service, target.port) as port:
            url = f"{target.scheme}://127.0.0.1:{port}"
            key = target.api_key or api_key
            # The tunnel ends in the pod; its certificate is for another name than 127.0.0.1
            with ChatClient(url, key, verify=False) as client:
                converse(client, target.model, system, ChatOptions(temperature, max_tokens))
    except AddressError as error:
        fail(error, EXIT_USAGE)
    except (ChatError, PortForwardError) as error:
        fail(error)
