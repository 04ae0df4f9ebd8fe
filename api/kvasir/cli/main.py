"""Entry point of the `kvasir` command.

It imports nothing at first, so that an interrupt while the rest is loaded is no traceback either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    end_with(_run)


def end_with(run: Callable[[], int]) -> NoReturn:
    """Exit with the status that `run` returns; without a traceback when it is interrupted."""
    try:
        status = run()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # The reader of our output went away; what Python would flush at exit has no place to go.
        sys.stdout = None
        status = 1
    sys.exit(status)


def _run() -> int:
    from kvasir.cli.root import run

    return run()
