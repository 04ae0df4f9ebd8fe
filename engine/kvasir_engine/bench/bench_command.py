"""`kvasir bench engine`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(add_completion=False, help="Measure an engine on this machine, in-process.")


@app.callback()
def bench() -> None:
    """Measure an engine on this machine, in-process."""


@app.command(name="engine")
def engine(
    model: Annotated[str, typer.Argument(help="A directory with a config.json.", metavar="MODEL")],
    load_format: Annotated[
        Literal["auto", "dummy"], typer.Option(help="dummy = random weights.")
    ] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option()] = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Decodes of a step.")] = 256,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each one's prompt.")] = 1000,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt without decodes.")] = 4096,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 8192,
    profile: Annotated[
        Path | None, typer.Option(help="Directory for traces; shows the GPU's idle share.")
    ] = None,
) -> None:
    """Time of a step by kind: decodes, prompts, and both; with --profile the GPU's idle share."""
    from kvasir_engine.bench.engine import Shape, bench_engine, table
    from kvasir_engine.errors import UserError
    from kvasir_engine.settings import make_settings

    if profile is not None:
        profile.mkdir(parents=True, exist_ok=True)
    try:
        settings = make_settings(
            model,
            device=device,
            load_format=load_format,
            max_num_seqs=batch,
            max_num_batched_tokens=max(batch, max_num_batched_tokens),
            max_model_len=max(context, prompt + 65) + batch + 128,
        )
        shape = Shape(batch, context, prompt)
        results = list(bench_engine(settings, Path(model), shape, profile, _announce))
    except UserError as error:
        typer.echo(f"kvasir bench engine: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo("\n".join(table(results)))


def _announce(kind: str) -> None:
    typer.echo(f"measuring: {kind}", err=True)


if __name__ == "__main__":
    app()
