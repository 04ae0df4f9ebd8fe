"""The key of an engine's block hashes."""

from __future__ import annotations

import os

from kvasir.wire.block_hash import SEED_BYTES, prefix_seed


def random_seed() -> bytes:
    """A seed of this process's own, for hashes that no other engine or router sees."""
    return os.urandom(SEED_BYTES)


def engine_seed(
    model: str, revision: str | None, *, fleet_secret: str | None, published: bool
) -> bytes:
    """The seed that the core and the API processes share.

    It is the fleet's wherever a router compares this engine's hashes with another replica's
    (`published`, by KV events or prompt reports), so there it must not be random. Without a fleet
    secret it is then made of the model and its revision alone.
    """
    if fleet_secret or published:
        return prefix_seed(fleet_secret=fleet_secret, model=model, revision=revision)
    return random_seed()
