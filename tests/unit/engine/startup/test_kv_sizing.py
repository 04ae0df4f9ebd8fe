"""Blocks for a budget, context for blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.settings import SettingsError
from kvasir_engine.startup.kv_sizing import context_that_fits, fit_context, split_blocks

FULL = (KVGroupSpec((0, 1), 16),)
MIXED = (KVGroupSpec((0,), 16), KVGroupSpec((1, 2), 16, 64))


@given(budget=st.integers(1 << 16, 1 << 34), length=st.sampled_from([64, 2048, 131072]))
def test_the_blocks_of_all_groups_stay_in_the_budget(budget: int, length: int) -> None:
    bytes_ = [4096, 8192]
    blocks = split_blocks(
        MIXED, bytes_, budget, max_model_len=length, max_num_seqs=256, max_num_batched_tokens=8192
    )
    # The null block of each group comes on top.
    assert sum((n - 1) * b for n, b in zip(blocks, bytes_, strict=True)) <= budget


def test_no_pool_is_larger_than_all_rows_can_use() -> None:
    (blocks,) = split_blocks(
        FULL, [1], 1 << 40, max_model_len=160, max_num_seqs=4, max_num_batched_tokens=64
    )
    assert blocks == 4 * 10 + 4 + 1


def test_a_window_group_gets_fewer_blocks_than_a_full_one() -> None:
    full, window = split_blocks(
        MIXED,
        [1024, 1024],
        1 << 26,
        max_model_len=65536,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    )
    assert window < full / 50


def test_the_context_is_what_the_smallest_group_holds() -> None:
    assert context_that_fits(FULL, [11], chunk=64) == 160
    assert fit_context(200, explicit=False, fitting=160, budget=1 << 30) == 160
    assert fit_context(100, explicit=True, fitting=160, budget=1 << 30) == 100


@pytest.mark.parametrize(("explicit", "fitting"), [(True, 160), (False, 16)])
def test_a_context_that_cannot_be_names_the_flags(explicit: bool, fitting: int) -> None:
    with pytest.raises(SettingsError, match=r"--max-model-len.*--kv-cache-memory-bytes"):
        fit_context(200, explicit=explicit, fitting=fitting, budget=1 << 20)
