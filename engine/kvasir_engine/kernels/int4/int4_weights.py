"""Weights in 4 bits, in the one layout that every checkpoint's is brought into.

A number stands for (number - zero point) x scale; a group of an output's inputs shares both. Eight
numbers are a word of int32. The 128 inputs of a unit are 16 words, and nibble j of word w is input
16 j + w of the unit: a tile of words, shifted once, is a tile of weights whose inputs are
neighbours, as those of a token's tile are, so that kernels exchange no numbers between threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

UNIT = 128
"""Inputs that are packed together; the last unit is filled up with zeros."""
NIBBLES = 8
WORDS = UNIT // NIBBLES
"""Words of a unit."""
SYMMETRIC_ZERO = 8
"""Zero point of weights that have none of their own."""
_SHIFTS = tuple(4 * nibble for nibble in range(NIBBLES))


class Int4Weight(NamedTuple):
    """A matrix [outputs, inputs] in 4 bits."""

    words: torch.Tensor
    """int32 [outputs, units x WORDS], contiguous."""
    scales: torch.Tensor
    """[groups of all units, outputs], in the model's type."""
    zeros: torch.Tensor | None
    """uint8, of the same shape; None for SYMMETRIC_ZERO everywhere."""
    group: int
    """Inputs of a group: 32, 64, or a multiple of UNIT."""

    def rows(self, rows: slice) -> Int4Weight:
        """Return the same for these outputs."""
        zeros = None if self.zeros is None else self.zeros[:, rows]
        return Int4Weight(self.words[rows], self.scales[:, rows], zeros, self.group)


def units_of(inputs: int) -> int:
    """Return the number of units that `inputs` take."""
    return -(-inputs // UNIT)


def groups_of(inputs: int, group: int) -> int:
    """Return the number of groups of all units that `inputs` take."""
    return -(-units_of(inputs) * UNIT // group)


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers [outputs, inputs], which are 0 .. 15, as words [outputs, units x WORDS]."""
    outputs, inputs = numbers.shape
    units = units_of(inputs)
    whole = nn.functional.pad(numbers, (0, units * UNIT - inputs)).view(outputs, -1, NIBBLES, WORDS)
    words = torch.zeros(outputs, units, WORDS, dtype=torch.int32, device=numbers.device)
    for nibble, shift in enumerate(_SHIFTS):
        words |= whole[:, :, nibble].to(torch.int32) << shift
    return words.flatten(1)


def unpacked(words: torch.Tensor, inputs: int) -> torch.Tensor:
    """Return the numbers uint8 [outputs, inputs] of words [outputs, units x WORDS]."""
    outputs = len(words)
    numbers = nibbles_of(words.view(outputs, -1, 1, WORDS), 2)
    return numbers.reshape(outputs, -1)[:, :inputs]


def nibbles_of(
    words: torch.Tensor, dim: int, order: Sequence[int] = range(NIBBLES)
) -> torch.Tensor:
    """Return the nibbles uint8 of int32 `words` along dim, where each word's NIBBLES stand side by
    side: the lowest, or that which `order` begins with, first."""
    shape = (*words.shape[: dim + 1], NIBBLES, *words.shape[dim + 1 :])
    apart = torch.empty(shape, dtype=torch.uint8, device=words.device)
    # One at a time: all at once they would be four bytes each.
    for place, nibble in enumerate(order):
        apart.select(dim + 1, place).copy_((words >> _SHIFTS[nibble]) & 15)
    return apart.flatten(dim, dim + 1)


def dequantized_by_torch(weight: Int4Weight, inputs: int) -> torch.Tensor:
    """Return the matrix [outputs, inputs] in the scales' type."""
    group, scales = weight.group, weight.scales
    numbers = unpacked(weight.words, inputs).to(scales.dtype)
    zeros = torch.full_like(scales, SYMMETRIC_ZERO) if weight.zeros is None else weight.zeros

    def spread(of_groups: torch.Tensor) -> torch.Tensor:
        wide = of_groups.t().to(scales.dtype).repeat_interleave(group, 1)
        return wide[:, :inputs]

    return (numbers - spread(zeros)) * spread(scales)
