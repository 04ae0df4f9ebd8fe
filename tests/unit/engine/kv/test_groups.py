from __future__ import annotations

from kvasir_engine.kv.cache_spec import KVCacheSpec
from kvasir_engine.kv.groups import KVGroupSpec, group_layers


def test_layers_of_one_window_share_a_group_and_full_attention_comes_first() -> None:
    specs = [KVCacheSpec(2, 8, window) for window in (8, None, 8, 4, None)]
    assert group_layers(specs, 16) == (
        KVGroupSpec((1, 4), 16, None),
        KVGroupSpec((3,), 16, 4),
        KVGroupSpec((0, 2), 16, 8),
    )


def test_groups_say_what_their_keys_and_values_are_stored_in() -> None:
    made = group_layers([KVCacheSpec(2, 8), KVCacheSpec(2, 8, 4)], 16, "fp8")
    assert [group.dtype for group in made] == ["fp8", "fp8"]


def test_a_uniform_model_has_one_group() -> None:
    assert group_layers([KVCacheSpec(2, 8)] * 2, 8) == (KVGroupSpec((0, 1), 8, None),)
