"""Experts' matrices in MXFP4: float4 (e2m1) numbers with a power of two for each 32 inputs.

Checkpoints hold, by output, groups of 16 bytes with the first number of each two in the low half.
Here a group is eight words of 16 bits in an order of numbers and bits that kernels unpack with few
instructions, and groups come before outputs, so that what a program multiplies next lies in one
piece of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from kvasir_engine.quantization.linear_method import ALL, Input, LinearLayer, LinearMethod, Stored

GROUP = 32
"""Inputs that share a scale."""
GROUP_BYTES = GROUP // 2
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits; the fourth is the sign."""
_PLACES = ((15, (6, 7, 8)), (12, (3, 4, 5)), (9, (0, 1, 2)), (14, (10, 11, 13)))
"""Bits of a word that its numbers have, which stand eight apart: the sign's, and the others from
the lowest on."""
SCALE_BIAS = 127
"""Exponent of a scale that is stored as 0, negated (E8M0)."""
DUMMY_SCALE = SCALE_BIAS - 8
"""Scale of random weights: they are small then."""


class ExpertMatrices(LinearLayer):
    """A layer of `layers.moe.ExpertLinear`'s kind."""

    shape: tuple[int, int, int]
    """Experts, outputs, inputs."""


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor that a checkpoint has of all experts' matrices of a layer."""

    suffix: str
    target: torch.Tensor
    """Its place, seen in the checkpoint's order: experts, outputs, groups and what else it has."""
    store: Callable[[torch.Tensor], None]
    """Put what was read of it there."""


class Mxfp4Experts(LinearMethod):
    """`weight` uint8 [experts, groups, outputs, 16] and `weight_scale` uint8 [experts, groups,
    outputs]; inputs stay as they are."""

    def create(self, layer: LinearLayer) -> None:
        """LinearMethod.create, of whole groups of inputs; all numbers are zero."""
        experts, outputs, inputs = cast(ExpertMatrices, layer).shape
        packed = torch.zeros(experts, inputs // GROUP, outputs, GROUP_BYTES, dtype=torch.uint8)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        layer.weight_scale = nn.Parameter(torch.zeros_like(packed[..., 0]), requires_grad=False)

    def stored(self, layer: LinearLayer) -> Sequence[Stored]:
        """LinearMethod.stored; raises ValueError, since no checkpoint has a tensor a matrix."""
        raise ValueError("MXFP4 weights are read of gpt-oss' experts alone; use plain weights")

    def packed(
        self, layer: LinearLayer, channels: int, *, alternating: bool
    ) -> Iterator[PackedTensor]:
        """Yield what a checkpoint has of all experts' matrices.

        `channels` of the rank's are the model's, and others fill up its last group: outputs where
        these are gates and ups that `alternate` and are two halves here, else inputs.
        """
        parts = {"_blocks": layer.weight.data, "_scales": layer.weight_scale.data}
        for suffix, tensor in parts.items():
            whole = tensor.transpose(1, 2)
            if alternating:
                target = whole[:, : 2 * channels]
            else:
                whole = target = whole[:, :, : channels // GROUP]

            def store(read: torch.Tensor, whole: torch.Tensor = whole) -> None:
                # One at a time, which bounds the memory that this takes.
                for to, numbers in zip(whole, read, strict=True):
                    ordered = repacked(numbers) if numbers.dim() == 3 else numbers
                    store_halves(to, ordered) if alternating else to.copy_(ordered)

            yield PackedTensor(suffix, target, store)

    def apply(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, rows: slice = ALL
    ) -> torch.Tensor:
        """LinearMethod.apply, for the rows of one expert."""
        expert = rows.start // cast(ExpertMatrices, layer).shape[1]
        matrix = dequantized(layer.weight.data[expert], layer.weight_scale.data[expert])
        return nn.functional.linear(cast(torch.Tensor, x), matrix.to(layer.dtype), bias)

    def scales(self, layer: LinearLayer) -> torch.Tensor | None:
        """LinearMethod.scales: of groups, which are the kernel's own."""
        return layer.weight_scale

    def fill_randomly(self, layer: LinearLayer, generator: torch.Generator) -> None:
        """LinearMethod.fill_randomly."""
        layer.weight.data.random_(generator=generator)
        layer.weight_scale.data.fill_(DUMMY_SCALE)


def store_halves(to: torch.Tensor, alternating: torch.Tensor) -> None:
    """Put outputs, which alternate, at the beginnings of both halves of `to` [outputs, ...]."""
    for half, outputs in zip(to.chunk(2), (alternating[::2], alternating[1::2]), strict=True):
        half[: len(outputs)].copy_(outputs)


def repacked(blocks: torch.Tensor) -> torch.Tensor:
    """Return a checkpoint's groups of bytes [..., 16] in the order of this file."""
    numbers = torch.stack((blocks & 15, blocks >> 4), -1).int().view(*blocks.shape[:-1], 4, 8)
    signs, sizes = numbers >> 3, numbers & 7
    words = torch.zeros_like(signs[..., 0, :])
    for number, (sign_at, places) in enumerate(_PLACES):
        words |= signs[..., number, :] << sign_at
        for bit, place in enumerate(places):
            words |= (sizes[..., number, :] >> bit & 1) << place
    return words.to(torch.int16).contiguous().view(torch.uint8)


def dequantized(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return fp32 [outputs, inputs] of one expert's packed [groups, outputs, 16] and scales
    [groups, outputs]."""
    positive = torch.tensor(NUMBERS, device=packed.device)
    table = torch.cat((positive, -positive))
    words = packed.contiguous().view(torch.int16).int()
    numbers = []
    for sign_at, places in _PLACES:
        code = (words >> sign_at & 1) << 3
        for bit, place in enumerate(places):
            code |= (words >> place & 1) << bit
        numbers.append(code)
    values = table[torch.cat(numbers, -1)] * torch.exp2(scales.float() - SCALE_BIAS)[..., None]
    return values.transpose(0, 1).flatten(1)
