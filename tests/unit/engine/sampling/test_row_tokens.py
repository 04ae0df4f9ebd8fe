"""Token lists of rows as flat indices of a batch, kept while nothing changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvasir_engine.sampling.row_tokens import RowBadWords, RowTokens

VOCAB = 100
CPU = torch.device("cpu")


@pytest.fixture
def lists() -> RowTokens:
    """Rows 1 and 3 of five have a list."""
    made = RowTokens(max_rows=5, vocab_size=VOCAB, device=CPU)
    made.put(1, np.array([7, 9]), np.array([0.5, -1.0], dtype=np.float32))
    made.put(3, np.array([4]))
    return made


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_lists_follow_the_order_of_the_batch(lists: RowTokens) -> None:
    step = lists.of_batch(rows(3, 0, 1))
    assert step is not None
    assert step.entries.tolist() == [0, 2]
    assert step.owner.tolist() == [0, 2, 2]
    assert step.flat.tolist() == [4, 2 * VOCAB + 7, 2 * VOCAB + 9]
    assert step.values.tolist() == [0.0, 0.5, -1.0]


def test_a_batch_without_lists_needs_nothing(lists: RowTokens) -> None:
    assert lists.of_batch(rows(0, 2, 4)) is None


def test_the_device_form_is_kept_until_the_batch_or_a_list_changes(lists: RowTokens) -> None:
    first = lists.of_batch(rows(1, 3))
    lists.put(0, np.array([], dtype=np.int64))  # had none, has none
    assert lists.of_batch(rows(1, 3)) is first
    assert lists.of_batch(rows(3, 1)) is not first
    lists.put(1, np.array([8]))
    changed = lists.of_batch(rows(3, 1))
    assert changed is not None
    assert changed.flat.tolist() == [4, VOCAB + 8]


def test_an_empty_list_takes_the_rows_list_away(lists: RowTokens) -> None:
    lists.put(3, np.array([], dtype=np.int64))
    assert lists.of_batch(rows(3)) is None


def test_words_are_split_into_a_padded_prefix_and_a_last_token() -> None:
    words = RowBadWords(max_rows=4, vocab_size=VOCAB, device=CPU)
    words.put(2, [[5], [1, 2, 3]])
    words.put(0, [[8, 9]])
    found = words.of_batch(rows(2, 0))
    assert found is not None
    last, prefixes = found
    assert last.flat.tolist() == [5, 3, VOCAB + 9]
    assert prefixes.tolist() == [[-1, -1], [1, 2], [-1, 8]]
    assert words.of_batch(rows(2, 0)) == found
    words.put(2, [])
    found = words.of_batch(rows(2, 0))
    assert found is not None
    assert (found[0].flat.tolist(), found[1].tolist()) == ([VOCAB + 9], [[8]])
