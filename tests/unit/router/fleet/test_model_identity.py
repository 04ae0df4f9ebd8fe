"""What must be equal for a stream to move, and what prefix hashes are made of."""

from __future__ import annotations

import pytest

from kvasir.wire.block_hash import prefix_seed
from kvasir_router.fleet.model_identity import ModelIdentity, fleet_seed

TOLD = ModelIdentity("a/b", "abc", "bfloat16", "fp8", "bfloat16")


@pytest.mark.parametrize("field", ModelIdentity._fields)
def test_each_field_tells_engines_apart(field: str) -> None:
    assert TOLD._replace(**{field: "other"}) != TOLD


def test_hashes_are_of_the_model_and_its_revision_alone() -> None:
    seed = prefix_seed(fleet_secret="key", model="a/b", revision="abc")
    assert fleet_seed(TOLD, "key") == fleet_seed(TOLD._replace(kv_cache_dtype="fp8"), "key") == seed
    empty = prefix_seed(fleet_secret="key", model=None, revision=None)
    assert fleet_seed(None, "key") == empty != seed
