"""Identity of what an engine computes, as it says itself."""

from typing import NamedTuple

from kvasir.wire.block_hash import prefix_seed


class ModelIdentity(NamedTuple):
    """From a card of /v1/models. Engines whose identities are equal give the same tokens for the
    same request, up to the order of sums; each field is None where the engine does not say it."""

    root: str | None = None
    """The model it has loaded."""
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    """Type of keys and values, which rounds them."""


def fleet_seed(identity: ModelIdentity | None, hash_key: str) -> bytes:
    """The seed of a model's prefix hashes (kvasir.wire.block_hash), as its Kvasir engines make it;
    None = it has none, and the hashes are the routers' own."""
    known = identity or ModelIdentity()
    return prefix_seed(fleet_secret=hash_key, model=known.root, revision=known.revision)
