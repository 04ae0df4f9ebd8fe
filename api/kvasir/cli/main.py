"""Entry point of the `kvasir` command.

It imports nothing at first, so that an interrupt while the rest is loaded is no traceback either.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    try:
        from kvasir.cli.root import run

        status = run()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # The reader of our output went away; what Python would flush at exit has no place to go.
        sys.stdout = None
        status = 1
    sys.exit(status)
