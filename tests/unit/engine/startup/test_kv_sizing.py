"""Blocks for a budget, context for blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.settings import SettingsError
from kvasir_engine.startup.kv_sizing import (
    bytes_of_one,
    context_that_fits,
    fit_context,
    split_blocks,
)

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


@given(
    full=st.integers(1, 64),
    windowed=st.integers(1, 64),
    window=st.sampled_from([128, 1024, 4096, 65536]),
    longest=st.sampled_from([2048, 8192, 131072]),
    length=st.integers(1024, 131072),
)
def test_half_of_what_the_best_split_holds_is_held_at_every_length(
    full: int, windowed: int, window: int, longest: int, length: int
) -> None:
    groups = (KVGroupSpec((0,), 16), KVGroupSpec((1,), 16, window))
    length = min(length, longest)
    tokens = (length, min(length, window + 32))
    bytes_ = [full << 12, windowed << 12]
    budget = 1 << 40
    blocks = split_blocks(
        groups,
        bytes_,
        budget,
        max_model_len=longest,
        max_num_seqs=1 << 30,
        max_num_batched_tokens=8192,
    )
    best = budget / sum(n / 16 * each for n, each in zip(tokens, bytes_, strict=True))
    held = min((each - 1) * 16 / n for each, n in zip(blocks, tokens, strict=True))
    assert held > best * 0.499


GEMMA_27B = (KVGroupSpec((0,), 16), KVGroupSpec((1,), 16, 1024))
GEMMA_27B_BYTES = [10 * 16 * 8192, 52 * 16 * 8192]
"""Ten layers see everything, 52 a window; 8 KiB a token and layer."""


@pytest.mark.parametrize(
    ("gibibytes", "reached", "windows"),
    [
        # By the shares of the groups.
        (24, 131_072, 26),
        # Room for one whole sequence, and shares of the rest.
        (16.26, 131_072, 11),
        # The windows of one sequence, and as many of its tokens as find room.
        (8, 56_768, 8),
        # A window and a step's chunk find no room: as many blocks everywhere.
        (3.5, 7_392, 7),
    ],
)
def test_one_sequence_reaches_far_where_windows_are_most_of_the_cache(
    gibibytes: float, reached: int, windows: int
) -> None:
    budget = int(gibibytes * 2**30)
    blocks = split_blocks(
        GEMMA_27B,
        GEMMA_27B_BYTES,
        budget,
        max_model_len=131072,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    )
    reach = min(131_072, context_that_fits(GEMMA_27B, blocks, chunk=8192))
    assert reach == reached
    assert blocks[1] * 16 // 1056 == windows
    spent = sum((n - 1) * each for n, each in zip(blocks, GEMMA_27B_BYTES, strict=True))
    assert 0.98 * budget < spent <= budget


def test_the_context_is_what_the_smallest_group_holds() -> None:
    assert context_that_fits(FULL, [11], chunk=64) == 160
    assert fit_context(200, False, 160, SettingsError) == 160
    assert fit_context(100, True, 160, SettingsError) == 100


@pytest.mark.parametrize(("explicit", "fitting"), [(True, 160), (False, 16)])
def test_a_context_that_cannot_be_is_a_shortage(explicit: bool, fitting: int) -> None:
    with pytest.raises(SettingsError, match="too small"):
        fit_context(200, explicit, fitting, lambda: SettingsError("too small"))


@pytest.mark.parametrize(
    "groups",
    [
        FULL,
        MIXED,
        GEMMA_27B,
        (KVGroupSpec((0,), 16, 64),),
        (KVGroupSpec((0,), 16, 64), KVGroupSpec((1,), 16, 128)),
    ],
)
@given(length=st.integers(1, 131072))
def test_one_sequence_fits_into_the_bytes_it_is_said_to_need(
    groups: tuple[KVGroupSpec, ...], length: int
) -> None:
    bytes_ = [4096 * (n + 1) for n, _ in enumerate(groups)]
    needed = bytes_of_one(groups, bytes_, length, chunk=256)
    blocks = split_blocks(
        groups,
        bytes_,
        needed - sum(bytes_),
        max_model_len=length,
        max_num_seqs=256,
        max_num_batched_tokens=256,
    )
    assert context_that_fits(groups, blocks, chunk=256) >= length


def test_one_sequence_needs_no_more_than_its_blocks_and_a_null_block() -> None:
    assert bytes_of_one(FULL, [10], 161, chunk=64) == 12 * 10
