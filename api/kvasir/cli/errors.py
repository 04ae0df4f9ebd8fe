"""How the commands end when they cannot go on: one sentence a problem on stderr, no traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import typer

from kvasir.llmdeployment import DeploymentFileError, LLMDeployment, load_file

EXIT_FAILED = 1
EXIT_USAGE = 2


def fail(message: object, status: int = EXIT_FAILED) -> NoReturn:
    """Prints `message` and ends the command with `status`."""
    print(f"kvasir: {message}", file=sys.stderr)
    raise typer.Exit(status)


def read_deployments(path: Path) -> list[LLMDeployment]:
    """The deployments in the file at `path`; ends the command when it has a problem."""
    try:
        return load_file(path)
    except DeploymentFileError as error:
        fail(error, EXIT_USAGE)
