"""Masks against HF transformers' logits warpers: the same support and the same values."""

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from kvasir_engine.sampling.logits import (
    ban_where,
    chunk_rows,
    ends_with,
    keep_allowed,
    mask_min_p,
    mask_top_k,
    mask_top_k_top_p,
)
from kvasir_engine.sampling.row_tokens import TokenLists

ROWS, VOCAB = 8, 500


def random_logits(seed: int, *, ties: bool = False) -> torch.Tensor:
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    return (logits * 2).round() / 2 if ties else logits


def column(value: float) -> torch.Tensor:
    return torch.full((ROWS, 1), value)


@pytest.mark.parametrize("min_p", [1e-6, 0.01, 0.2, 0.999, 1.0])
def test_min_p(min_p):
    logits = random_logits(1)
    assert torch.equal(mask_min_p(logits, column(min_p)), MinPLogitsWarper(min_p)(None, logits))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, 50, VOCAB - 1, VOCAB])
def test_top_k(top_k, ties):
    logits = random_logits(2, ties=ties)
    expected = TopKLogitsWarper(top_k)(None, logits)
    assert torch.equal(mask_top_k(logits, column(top_k), VOCAB), expected)
    assert torch.equal(mask_top_k(logits, column(top_k), top_k), expected)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("top_k", [1, 40, VOCAB])
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_k_then_top_p(top_k, top_p, ties):
    logits = random_logits(3, ties=ties)
    expected = TopPLogitsWarper(top_p)(None, TopKLogitsWarper(top_k)(None, logits))
    masked = mask_top_k_top_p(logits, column(top_k), column(top_p))
    if ties:  # HF's sort is not stable: which of several equal logits stays is not defined
        masked, expected = masked.sort(-1).values, expected.sort(-1).values
    assert torch.equal(masked, expected)


def test_equal_logits_leave_by_index_in_any_batch():
    logits = torch.zeros(ROWS, VOCAB)
    kept = mask_top_k_top_p(logits, column(VOCAB), column(10.5 / VOCAB)).isfinite()
    assert kept[:, -11:].all()
    assert not kept[:, :-11].any()


def test_all_three_chained_on_masked_logits():
    logits = random_logits(4)
    logits[:, ::3] = -torch.inf
    expected = MinPLogitsWarper(0.02)(None, logits)
    expected = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(20)(None, expected))
    actual = mask_top_k_top_p(mask_min_p(logits, column(0.02)), column(20), column(0.8))
    assert torch.equal(actual, expected)


def test_rows_have_their_own_limits():
    logits = random_logits(5)
    top_k = torch.arange(1, ROWS + 1).unsqueeze(1)
    top_p = torch.linspace(0.1, 0.95, ROWS).unsqueeze(1)
    masked = mask_top_k_top_p(logits, top_k, top_p)
    for row in range(ROWS):
        kept = TopKLogitsWarper(row + 1)(None, logits[row : row + 1])
        expected = TopPLogitsWarper(top_p[row].item())(None, kept)
        assert torch.equal(masked[row : row + 1], expected)


def test_tiny_top_p_keeps_exactly_the_likeliest():
    logits = random_logits(6)
    kept = mask_top_k_top_p(logits, column(VOCAB), column(1e-9)).isfinite()
    assert torch.equal(kept.sum(1), torch.ones(ROWS, dtype=torch.int64))
    assert torch.equal(kept.int().argmax(1), logits.argmax(1))


def step_tokens(flat: list[int], entries: list[int]) -> TokenLists:
    index = torch.tensor(flat)
    return TokenLists(torch.tensor(entries), index // VOCAB, index, torch.zeros(len(flat)))


def test_keep_allowed_leaves_other_rows_alone():
    logits = random_logits(7)
    before = logits.clone()
    keep_allowed(logits, step_tokens([2 * VOCAB + 3, 2 * VOCAB + 499, 2 * VOCAB + 3], [2]))
    assert logits[2].isfinite().nonzero().flatten().tolist() == [3, 499]
    assert torch.equal(logits[2, [3, 499]], before[2, [3, 499]])
    others = [row for row in range(ROWS) if row != 2]
    assert torch.equal(logits[others], before[others])


@pytest.mark.parametrize("order", [[True, False], [False, True]])
def test_a_token_named_twice_is_banned_if_either_says_so(order):
    logits = random_logits(8)
    before = logits.clone()
    ban_where(logits, step_tokens([VOCAB + 4, VOCAB + 4, 9], [0, 1]), torch.tensor([*order, False]))
    assert logits[1, 4] == -torch.inf
    assert (logits != before).sum() == 1


def test_ends_with_reads_only_the_known_tokens():
    history = torch.tensor([[1, 2, 3, 7, 7], [2, 3, 0, 0, 0]], dtype=torch.int32)
    prefixes = torch.tensor([[2, 3], [-1, 3], [-1, -1], [1, 2], [3, 7]], dtype=torch.int32)

    def found(row: int, length: int) -> list[bool]:
        n = len(prefixes)
        return ends_with(
            history, torch.full((n,), row), torch.full((n,), length), prefixes
        ).tolist()

    assert found(0, 3) == [True, True, True, False, False]
    assert found(0, 4) == [False, False, True, False, True]
    assert found(1, 2) == [True, True, True, False, False]
    assert found(1, 1) == [False, False, True, False, False]


def test_no_prefix_of_a_word_reaches_before_the_first_token():
    history = torch.tensor([[5, 5, 5]], dtype=torch.int32)
    prefixes = torch.tensor([[5, 5]], dtype=torch.int32)
    assert ends_with(history, torch.tensor([0]), torch.tensor([1]), prefixes).tolist() == [False]


def test_chunks_are_bounded_and_never_empty():
    assert chunk_rows(128_256) * 128_256 * 4 <= 64 << 20
    assert chunk_rows(10**9) == 1
