"""`kvasir version`."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from kvasir import __version__

PARTS = (
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "fastapi",
    "starlette",
    "uvloop",
    "pyzmq",
    "grpcio",
    "kopf",
    "kubernetes",
)
"""Distributions whose versions explain differences between two installations."""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog="\b\nExample:\n  kvasir version --json | jq .parts.torch")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the versions of Kvasir, Python and the installed parts."""
    parts = {name: found for name in PARTS if (found := _installed(name)) is not None}
    python = platform.python_version()
    if as_json:
        print(json.dumps({"kvasir": __version__, "python": python, "parts": parts}))
        return
    for name, value in {"kvasir": __version__, "python": python, **parts}.items():
        print(f"{name:<14}{value}")


def _installed(distribution: str) -> str | None:
    """The version in the distribution's metadata: importing torch would take seconds."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
