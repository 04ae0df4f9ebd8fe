"""The log-probability kernels against torch's own operations."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.sampling.token_logprobs import token_logprobs

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter):
    from kvasir_engine.sampling import logprob_kernel

    return logprob_kernel


def compare(kernels, logits: torch.Tensor, tokens: torch.Tensor, top: int) -> None:
    """The alternatives are those of a stable sort: of equal logits the lower token is first."""
    got = [each.cpu() for each in kernels.row_logprobs(logits.to(DEVICE), tokens.to(DEVICE), top)]
    want = token_logprobs(logits.float(), tokens, top)
    order = logits.float().sort(descending=True, stable=True).indices[:, :top]
    torch.testing.assert_close(got[0], want.logprobs, rtol=1e-5, atol=1e-5)
    assert got[1].tolist() == want.ranks.tolist()
    assert got[2].tolist() == order.tolist()
    torch.testing.assert_close(got[3], want.top_logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("vocab", "top"), [(1, 1), (97, 97), (97, 0), (300, 20), (9000, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_ranks_and_alternatives(kernels, vocab: int, top: int, dtype) -> None:
    logits = (torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab)) * 4).to(dtype)
    compare(kernels, logits, torch.arange(5) * 61 % vocab, top)


def test_equal_logits_are_taken_in_order_and_share_the_better_rank(kernels) -> None:
    logits = torch.zeros(3, 400)
    logits[:, [7, 130, 131, 399]] = 2.0
    compare(kernels, logits, torch.tensor([399, 7, 12]), 9)


def test_banned_tokens_come_last_and_once(kernels) -> None:
    logits = torch.full((1, 140), -torch.inf)
    logits[0, [3, 135]] = torch.tensor([1.0, 2.0])
    compare(kernels, logits, torch.tensor([3]), 6)


def test_logits_of_wider_rows(kernels) -> None:
    wide = torch.randn(4, 500, generator=torch.Generator().manual_seed(9))
    compare(kernels, wide[:, :450], torch.tensor([0, 449, 128, 127]), 3)
