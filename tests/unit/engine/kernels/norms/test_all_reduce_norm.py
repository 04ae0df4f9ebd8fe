"""Sums over ranks, additions and norms, one rank after the other: what a rank would wait for is
there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.kernels.norms.norm_parameters import NormParameters

RANKS, SIZE, HALF = 2, 40, 64 << 10
EPS = 1e-5


@pytest.fixture
def kernels(triton_interpreter):
    from kvasir_engine.device.communicators import one_shot_kernel
    from kvasir_engine.kernels.norms import add_norm

    return SimpleNamespace(one_shot=one_shot_kernel, norms=add_norm)


class Group:
    """The regions of all ranks, in one process."""

    def __init__(self, one_shot) -> None:
        size = one_shot.region_bytes(HALF, RANKS)
        self.regions = [torch.zeros(size, dtype=torch.uint8) for _ in range(RANKS)]
        bases = tuple(region.data_ptr() for region in self.regions)
        device = torch.device("cpu")
        self.sums = [one_shot.OneShotSum(bases, rank, HALF, device) for rank in range(RANKS)]
        self.calls = 0

    def rank_1_has_written(self, share: torch.Tensor) -> None:
        """Do what rank 1 does first, before it waits."""
        self.calls += 1
        start = self.calls % 2 * HALF
        self.regions[1][start : start + share.nbytes].view(share.dtype).copy_(share.flatten())
        self.regions[0][2 * HALF :].view(torch.int32).view(-1, RANKS)[:, 1] = self.calls


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_the_ranks_sum_is_added_and_normed(kernels, tokens: int) -> None:
    group, norm = Group(kernels.one_shot), NormParameters(torch.rand(SIZE), EPS)
    for _ in range(3):
        shares = [torch.randn(tokens, SIZE) for _ in range(RANKS)]
        residual = torch.randn(tokens, SIZE)
        want = shares[0] + shares[1] + residual
        group.rank_1_has_written(shares[1])
        for rank in range(RANKS):
            x = shares[rank].clone()
            got, total = kernels.norms.add_norm(x, residual, norm, ranks=group.sums[rank])
            torch.testing.assert_close(total, want)
            torch.testing.assert_close(got, normed(want, norm.weight))


@pytest.mark.slow
def test_shares_come_in_parts_and_are_normed_before_and_quantised_after(kernels) -> None:
    group = Group(kernels.one_shot)
    post, norm = (NormParameters(torch.rand(SIZE), EPS) for _ in range(2))
    parts, other = torch.randn(4, 2, SIZE), torch.randn(2, SIZE)
    residual = torch.randn(2, SIZE)
    group.rank_1_has_written(other)

    rows, total = kernels.norms.add_norm_rows(parts, residual, norm, post=post, ranks=group.sums[0])

    want = normed(parts.sum(0) + other, post.weight) + residual
    torch.testing.assert_close(total, want)
    back = rows.values.float() * rows.scales[:, None]
    torch.testing.assert_close(back, normed(want, norm.weight), atol=0.1, rtol=0.07)


@pytest.mark.slow
def test_without_residual_and_norm_it_is_the_sum(kernels) -> None:
    group = Group(kernels.one_shot)
    shares = [torch.randn(2, SIZE) for _ in range(RANKS)]
    group.rank_1_has_written(shares[1])

    first, total = kernels.norms.add_norm(shares[0].clone(), None, None, ranks=group.sums[0])

    torch.testing.assert_close(total, shares[0] + shares[1])
    assert first is total
