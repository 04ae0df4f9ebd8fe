"""Identity of what an engine computes, as it says itself."""

from typing import NamedTuple


class ModelIdentity(NamedTuple):
    """From a card of /v1/models. Engines whose identities are equal give the same tokens for the
    same request, up to the order of sums; each field is None where the engine does not say it."""

    root: str | None = None
    """The model it has loaded."""
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
