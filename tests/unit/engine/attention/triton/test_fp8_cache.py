"""Float8 as pairs of channels: every one of its numbers, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.device.float8 import FP8

NUMBERS = [*range(0x7F), *range(0x80, 0xFF)]
"""All of float8's bits but the two that stand for no number."""


@pytest.fixture
def channels(triton_interpreter):
    import triton
    import triton.language as tl

    from kvasir_engine.attention.triton.fp8_cache import as_pairs, even_channels, odd_channels

    @triton.jit
    def split(pairs_ptr, even_ptr, odd_ptr, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)
        pairs = tl.load(pairs_ptr + at)
        tl.store(even_ptr + at, even_channels(pairs, False))
        tl.store(odd_ptr + at, odd_channels(pairs, False))

    def both(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = as_pairs(cache)
        even = torch.empty(len(pairs), dtype=torch.float16)
        odd = torch.empty_like(even)
        split[(1,)](pairs, even, odd, SIZE=len(pairs))
        return even, odd

    return both


def test_every_number_is_what_it_was(channels) -> None:
    padded = [*NUMBERS, *[0] * (256 - len(NUMBERS))]
    bits = torch.tensor(padded, dtype=torch.uint8)
    even, odd = channels(torch.stack([bits, bits.flip(0)], 1).flatten().view(FP8))
    numbers = bits.view(FP8).float()
    assert torch.equal(even.float(), numbers)
    assert torch.equal(odd.float(), numbers.flip(0))
