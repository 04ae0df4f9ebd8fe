"""`kvasir chat`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.errors import EXIT_USAGE, fail

if TYPE_CHECKING:
    from kvasir.cli.conversation.chat_client import ChatClient, ChatOptions

MAX_INPUT_BYTES = 8 * 1024 * 1024

_EPILOG = """\b
Examples:
  kvasir chat
  kvasir chat --url https://models.example.com --model llama-8b --system 'Be brief.'
  echo 'Sort: 3 1 2' | kvasir chat --temperature 0

\b
In the conversation: /reset forgets it, /exit or Ctrl-D leaves, Ctrl-C stops an answer.
When input is no terminal, all of it is one message, and the answer goes to stdout."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def chat(
    url: Annotated[
        str, typer.Option(envvar="KVASIR_URL", help="A server that speaks OpenAI's API.")
    ] = "http://127.0.0.1:8080",
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Default: the server's, if it has one.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest token.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="KVASIR_API_KEY", help="Key for the server.")
    ] = None,
) -> None:
    """Talk to a model in the terminal."""
    from kvasir.cli.conversation.chat_client import AddressError, ChatClient, ChatError, ChatOptions

    try:
        with ChatClient(url, api_key) as client:
            options = ChatOptions(temperature, max_tokens)
            converse(client, model or _only_model(client), system, options)
    except AddressError as error:
        fail(error, EXIT_USAGE)
    except ChatError as error:
        fail(error)


def converse(client: ChatClient, model: str, system: str | None, options: ChatOptions) -> None:
    """Talk in the terminal; where input is none, it is one message. Raises ChatError."""
    from kvasir.cli.conversation.chat_session import Session

    session = Session(client, model, system, options)
    if sys.stdin.isatty():
        import readline  # noqa: F401  (gives input() editing and history)

        session.talk(lambda: input("> "))
        return
    session.say(_standard_input())


def _standard_input() -> str:
    data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        fail(f"standard input is larger than {MAX_INPUT_BYTES} bytes; shorten it", EXIT_USAGE)
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        fail("standard input is not text in UTF-8", EXIT_USAGE)
    if not text:
        fail("standard input is empty; write a message to it", EXIT_USAGE)
    return text


def _only_model(client: ChatClient) -> str:
    models = client.models()
    if len(models) != 1:
        names = ", ".join(models) or "none"
        fail(f"choose a model with --model; {client.url} has {names}", EXIT_USAGE)
    return models[0]
