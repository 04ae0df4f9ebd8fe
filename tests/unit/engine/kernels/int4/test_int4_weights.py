"""The one layout of weights in 4 bits."""

from __future__ import annotations

import pytest
import torch
from support.engines.int4_checkpoints import Rounding, random_int4

from kvasir_engine.kernels.int4.int4_weights import (
    Int4Weight,
    dequantized_by_torch,
    nibbles_of,
    packed,
    unpacked,
)


@pytest.mark.parametrize("inputs", [8, 100, 128, 300])
def test_numbers_come_back(inputs: int) -> None:
    numbers = torch.randint(0, 16, (5, inputs), dtype=torch.uint8)
    words = packed(numbers)
    assert words.shape == (5, 16 * -(-inputs // 128))
    assert torch.equal(unpacked(words, inputs), numbers)


def test_nibbles_of_a_word_are_16_inputs_apart() -> None:
    numbers = torch.zeros(1, 256, dtype=torch.uint8)
    numbers[0, 128 + 3 * 16 + 5] = 9
    words = packed(numbers)
    assert words.nonzero().tolist() == [[0, 16 + 5]]
    assert words[0, 21].item() == 9 << 12


def test_nibbles_come_in_the_order_that_is_asked_for() -> None:
    word = torch.tensor([[0x76543210]], dtype=torch.int32)
    assert nibbles_of(word, 1).tolist() == [[*range(8)]]
    assert nibbles_of(word, 0, (7, 0, 1, 2, 3, 4, 5, 6)).flatten().tolist() == [7, *range(7)]
    assert nibbles_of(torch.tensor([-1], dtype=torch.int32), 0).tolist() == [15] * 8


@pytest.mark.parametrize("how", [Rounding(32), Rounding(128), Rounding(-1, symmetric=True)])
def test_dequantised(how: Rounding) -> None:
    weight, matrix = random_int4(24, 256, how)
    assert torch.equal(dequantized_by_torch(weight, 256), matrix)
    some = weight.rows(slice(8, 16))
    assert isinstance(some, Int4Weight)
    assert torch.equal(dequantized_by_torch(some, 256), matrix[8:16])
