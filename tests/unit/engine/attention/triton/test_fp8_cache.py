"""Float8 as pairs of channels: every one of its numbers, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kvasir_engine.attention.triton.fp8_cache import as_pairs, even_channels, odd_channels
from kvasir_engine.device.float8 import FP8

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = tl.constexpr(DEVICE.type == "cuda")
NUMBERS = [*range(0x7F), *range(0x80, 0xFF)]
"""All of float8's bits but the two that stand for no number."""


@triton.jit
def split(pairs_ptr, even_ptr, odd_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    pairs = tl.load(pairs_ptr + at)
    tl.store(even_ptr + at, even_channels(pairs, ON_GPU))
    tl.store(odd_ptr + at, odd_channels(pairs, ON_GPU))


@pytest.mark.usefixtures("triton_interpreter")
def test_every_number_is_what_it_was() -> None:
    bits = torch.tensor([*NUMBERS, *[0] * (256 - len(NUMBERS))], dtype=torch.uint8)
    pairs = as_pairs(torch.stack([bits, bits.flip(0)], 1).flatten().view(FP8)).to(DEVICE)
    even = torch.empty(len(pairs), dtype=torch.float16, device=DEVICE)
    odd = torch.empty_like(even)
    split[(1,)](pairs, even, odd, SIZE=len(pairs))
    numbers = bits.view(FP8).float()
    assert torch.equal(even.cpu().float(), numbers)
    assert torch.equal(odd.cpu().float(), numbers.flip(0))
