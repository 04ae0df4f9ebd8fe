from __future__ import annotations

from kvasir_engine.kv.groups import KVGroupSpec, group_layers


def test_layers_of_one_window_share_a_group_and_full_attention_comes_first() -> None:
    assert group_layers((8, None, 8, 4, None), 16) == (
        KVGroupSpec((1, 4), 16, None),
        KVGroupSpec((3,), 16, 4),
        KVGroupSpec((0, 2), 16, 8),
    )


def test_a_uniform_model_has_one_group() -> None:
    assert group_layers((None, None), 8) == (KVGroupSpec((0, 1), 8, None),)
