"""What logits processors are called with, and what they may return."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kvasir_engine.sampling.logits_processors import BANNED, BiasError, bias_of

VOCAB = 6


def at(token: int, value: float) -> torch.Tensor:
    bias = torch.zeros(VOCAB)
    bias[token] = value
    return bias


def test_biases_are_added_and_what_is_returned_may_be_used_again() -> None:
    kept = at(1, 2.0)
    made = bias_of([lambda *_: kept, lambda *_: at(1, 3.0), lambda *_: at(4, -1.0)], [], [], VOCAB)
    assert made.tolist() == [0.0, 5.0, 0.0, 0.0, -1.0, 0.0]
    kept.fill_(9.0)
    assert made[1] == 5.0


def test_each_processor_has_lists_of_its_own() -> None:
    seen: list[Any] = []

    def greedy(prompt: list[int], output: list[int]) -> torch.Tensor:
        seen.append((list(prompt), list(output)))
        prompt.clear()
        output.append(7)
        return torch.zeros(VOCAB)

    bias_of([greedy, greedy], [1, 2], [3], VOCAB)
    assert seen == [([1, 2], [3])] * 2


def test_a_ban_is_finite_so_that_what_alone_is_left_can_be_sampled() -> None:
    made = bias_of([lambda *_: at(2, -math.inf), lambda *_: at(2, 5.0)], [], [], VOCAB)
    assert made[2] == BANNED
    assert torch.isfinite(made).all()


def test_gradients_are_left_out() -> None:
    weights = torch.ones(VOCAB, requires_grad=True)
    assert not bias_of([lambda *_: weights * 2], [], [], VOCAB).requires_grad


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "got NoneType"),
        ([0.0] * VOCAB, "got list"),
        (torch.zeros(VOCAB + 1), r"got float32 \[7\]"),
        (torch.zeros(1, VOCAB), r"got float32 \[1, 6\]"),
        (torch.zeros(VOCAB, dtype=torch.float64), r"got float64 \[6\]"),
        (at(1, math.nan), "finite or -inf"),
        (at(1, math.inf), "finite or -inf"),
        (torch.full((VOCAB,), -math.inf), "not ban every token"),
    ],
)
def test_what_is_no_bias_is_refused_by_one_sentence(returned: Any, words: str) -> None:
    with pytest.raises(BiasError, match=words):
        bias_of([lambda *_: returned], [], [], VOCAB)


def test_processors_that_together_ban_every_token_are_refused() -> None:
    low, high = torch.zeros(VOCAB), torch.zeros(VOCAB)
    low[:3] = high[3:] = -math.inf
    with pytest.raises(BiasError, match="not ban every token"):
        bias_of([lambda *_: low, lambda *_: high], [], [], VOCAB)
