"""The mask kernel against torch's own operations."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.grammar.matcher import num_words
from kvasir_engine.sampling import logits as edits

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def ban_unset(triton_interpreter):
    from kvasir_engine.sampling.mask_kernel import ban_unset

    return ban_unset


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_are_the_reference_s(ban_unset, vocab: int, dtype) -> None:
    draw = torch.Generator().manual_seed(vocab)
    logits = torch.randn(5, vocab, generator=draw).to(dtype).to(DEVICE)
    words = (3, num_words(vocab))
    masks = torch.randint(-(2**31), 2**31, words, generator=draw, dtype=torch.int32).to(DEVICE)
    entries = torch.tensor([4, 0, 2], device=DEVICE)
    want = logits.clone()
    edits.ban_unset(want, entries, masks)
    ban_unset(logits, entries, masks)
    assert torch.equal(logits, want)
