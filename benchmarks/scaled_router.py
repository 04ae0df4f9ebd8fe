"""`kvasir router` in front of engines whose tokens stand for several.

    python benchmarks/scaled_router.py TOKENS [options of kvasir router]

Whatever its policy counts in tokens is divided as the fleet's tokens are (`sim_fleet.py`), so that
it weighs loads and hits as it would in front of the real fleet.
"""

from __future__ import annotations

import sys

from kvasir_router.command import app
from kvasir_router.index import model_index
from kvasir_router.options.policy_options import KvAwareOptions
from kvasir_router.policy import token_load


def divide(tokens: int) -> dict[str, dict[str, float]]:
    """Make every constant of that many tokens one, and return such options of policies."""
    token_load.STALE_TOKENS //= tokens
    token_load.REQUEST_TOKENS //= tokens
    model_index.BYTES_PER_TOKEN *= tokens  # type: ignore[attr-defined]
    real = KvAwareOptions()
    scaled = {name: getattr(real, name) // tokens for name in ("min_load_tokens", "barrier_tokens")}
    return {"kv_aware": scaled}


if __name__ == "__main__":
    for policy, options in divide(int(sys.argv.pop(1))).items():
        for name, value in options.items():
            sys.argv += ["--policy-option", f"{policy}.{name}={value}"]
    app(prog_name="kvasir router")
