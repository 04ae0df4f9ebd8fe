"""Entry points of `kubectl-kvasir`, which kubectl runs as `kubectl kvasir`, and of its completion.

It speaks to the API server itself, with the client that the operator and the routers use: one
process, one connection, errors with the API server's own words, and watches and logs that end when
they are told to. A port-forward alone is left to the kubectl that runs the plugin: its tunnel is
SPDY or WebSocket by the cluster's version, and kubectl knows both.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from typing import NoReturn

from kvasir.cli.main import end_with

NAME = "kubectl kvasir"
_PROGRAM = "kubectl-kvasir"
_NO_FILES, _FILES = ":4", ":0"
"""Directives of kubectl's completion: whether names of files are offered too."""

_WITH_FILES = ("-f", "--file", "--filename", "--kubeconfig", "--to")
"""Options that take the name of a file."""


def main() -> NoReturn:
    """Run the plugin and exit: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    end_with(_run)


def complete() -> NoReturn:
    """Print what may follow, one a line, and kubectl's directive: `kubectl_complete-kvasir WORDS`,
    of which the last one is not complete."""
    end_with(_complete)


def _run() -> int:
    from kvasir.cli.kubectl.plugin_group import app
    from kvasir.cli.root import run

    return run(app, NAME)


def _complete() -> int:
    import typer

    from kvasir.cli.kubectl.plugin_group import app

    words = sys.argv[1:] or [""]
    os.environ["COMP_WORDS"] = shlex.join([_PROGRAM, *words])
    os.environ["COMP_CWORD"] = str(len(words))
    os.environ["_KUBECTL_KVASIR_COMPLETE"] = "complete_bash"
    with suppress(SystemExit):  # as it always ends
        typer.main.get_command(app).main(args=[], prog_name=_PROGRAM)
    before = words[-2] if len(words) > 1 else ""
    print(_FILES if before in _WITH_FILES else _NO_FILES)
    return 0
