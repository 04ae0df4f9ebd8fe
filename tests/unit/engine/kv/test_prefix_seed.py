"""Which engines hash alike."""

from __future__ import annotations

import pytest

from kvasir.wire.block_hash import SEED_BYTES, prefix_seed
from kvasir_engine.kv.prefix_seed import engine_seed, random_seed


@pytest.mark.parametrize("published", [True, False])
def test_engines_of_a_fleet_hash_alike(published: bool) -> None:
    expected = prefix_seed(fleet_secret="s", model="org/m", revision="1")
    assert engine_seed("org/m", "1", fleet_secret="s", published=published) == expected
    assert engine_seed("org/m", "2", fleet_secret="s", published=published) != expected
    assert engine_seed("org/m", "1", fleet_secret="t", published=published) != expected


def test_without_a_secret_only_what_a_router_sees_is_alike() -> None:
    seen = [engine_seed("m", None, fleet_secret=None, published=True) for _ in range(2)]
    assert seen[0] == seen[1] == prefix_seed(fleet_secret=None, model="m", revision=None)
    unseen = [engine_seed("m", None, fleet_secret=None, published=False) for _ in range(2)]
    assert len({*unseen, *seen, random_seed()}) == 4
    assert {len(seed) for seed in unseen} == {SEED_BYTES}
