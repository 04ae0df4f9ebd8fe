"""Ending a command that cannot go on: one sentence a problem on stderr, no traceback."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def fail(message: object, status: int = EXIT_FAILED) -> NoReturn:
    """Print `message` and end the command with `status`."""
    print(f"kvasir: {message}", file=sys.stderr)
    raise typer.Exit(status)
