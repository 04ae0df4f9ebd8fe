"""`kvasir router` in front of engines whose tokens stand for several.

    python benchmarks/scaled_router.py TOKENS [options of kvasir router]

Whatever its policy counts in tokens is divided as the fleet's tokens are (`sim_fleet.py`), so that
it weighs loads and hits as it would in front of the real fleet.
"""

from __future__ import annotations

import sys

from kvasir_router.command import app
from kvasir_router.index import model_index
from kvasir_router.policy import kv_aware, token_load


def divide(tokens: int) -> None:
    """Make every constant of that many tokens one."""
    token_load.BARRIER_TOKENS //= tokens
    token_load.STALE_TOKENS //= tokens
    token_load._REQUEST_WEIGHT /= tokens
    token_load.REQUEST_TOKENS //= tokens
    kv_aware.MIN_LOAD_TOKENS //= tokens  # type: ignore[attr-defined]
    model_index.BYTES_PER_TOKEN *= tokens  # type: ignore[attr-defined]


if __name__ == "__main__":
    divide(int(sys.argv.pop(1)))
    app(prog_name="kvasir router")
