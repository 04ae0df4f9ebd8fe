"""`kubectl kvasir convert`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvasir.cli.errors import EXIT_FAILED, EXIT_USAGE, fail
from kvasir.cli.printable import printable

MAX_BYTES = 1024 * 1024

_EPILOG = """\b
Examples:
  kubectl kvasir convert -f inferenceservice.yaml > qwen3.yaml
  kubectl get models.kubeai.org qwen3-8b -o yaml | kubectl kvasir convert -f - | kubectl apply -f -
  kubectl kvasir convert -- vllm serve Qwen/Qwen3-8B --max-model-len 32768 -tp 2

\b
From KServe's InferenceService, KubeAI's Model, values of vLLM's production-stack, and vllm serve.
What has no counterpart is named on stderr. Nothing is asked of a cluster."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def convert(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A command line, after --.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--filename", "-f", allow_dash=True, help="A file; - is standard input."),
    ] = None,
    engine: Annotated[
        Literal["vllm", "kvasir"],
        typer.Option(help="Engine that serves: vLLM with its flags, or Kvasir's own."),
    ] = "vllm",
    name: Annotated[
        str | None, typer.Option(help="Name of the LLMDeployment of a command line.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit status 1 where anything is lost.")
    ] = False,
) -> None:
    """Write LLMDeployments for what other platforms have."""
    from kvasir.cli.kubectl.convert.conversion import as_yaml, convert_text, convert_words
    from kvasir.cli.kubectl.convert.draft import ConvertError

    if (file is None) == (not command):
        fail("give either -f FILE or a command line after --", EXIT_USAGE)
    try:
        if file is not None:
            drafts = convert_text(_read(file), str(file), engine)
        else:
            drafts = [convert_words(command or [], engine, name)]
    except ConvertError as error:
        fail(error)
    for draft in drafts:
        told = [*(f"not converted: {each}" for each in draft.lost), *draft.notes]
        for sentence in told:
            print(printable(f"{draft.name}: {sentence}"), file=sys.stderr)
    print(as_yaml(drafts), end="")
    if strict and any(draft.lost for draft in drafts):
        raise typer.Exit(EXIT_FAILED)


def _read(file: Path) -> str:
    try:
        if str(file) == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with file.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}", EXIT_USAGE)
    if len(content) > MAX_BYTES:
        fail(f"{file} is larger than {MAX_BYTES} bytes; split it", EXIT_USAGE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        fail(f"{file} is not text in UTF-8", EXIT_USAGE)
