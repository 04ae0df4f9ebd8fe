"""The kernel's sums and signals, one rank after the other: what a rank would wait for is there."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.slow

RANKS, HALF = 2, 64 << 10
SIGNALS = slice(2 * HALF, None)


@pytest.fixture
def kernel(triton_interpreter):
    from kvasir_engine.device.communicators import one_shot_kernel

    return one_shot_kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("numel", [8, 2048, 5000])
def test_ranks_sum_and_signal_the_number_of_the_call(kernel, numel: int, dtype) -> None:
    size = kernel.region_bytes(HALF, RANKS)
    regions = [torch.zeros(size, dtype=torch.uint8) for _ in range(RANKS)]
    signals = [region[SIGNALS].view(torch.int32).view(-1, RANKS) for region in regions]
    bases = tuple(region.data_ptr() for region in regions)
    sums = [kernel.OneShotSum(bases, rank, HALF, torch.device("cpu")) for rank in range(RANKS)]
    for call in (1, 2, 3):
        parts = [torch.arange(numel, dtype=dtype) % 7 + rank * call for rank in range(RANKS)]
        want = parts[0] + parts[1]
        # What rank 1 does first, before it waits.
        start = call % 2 * HALF
        regions[1][start : start + want.nbytes].view(dtype).copy_(parts[1])
        signals[0][:, 1] = call
        found = [sums[rank](parts[rank].clone()) for rank in range(RANKS)]
        programs = int((signals[1][:, 0] == call).sum())
        assert programs == min(kernel.MAX_PROGRAMS, -(-want.nbytes // (16 * 32 * 8)))
        assert torch.equal(found[0], want)
        assert torch.equal(found[1], want)


def test_call_numbers_wrap_around(kernel) -> None:
    size = kernel.region_bytes(HALF, RANKS)
    regions = [torch.zeros(size, dtype=torch.uint8) for _ in range(RANKS)]
    one = kernel.OneShotSum(
        tuple(region.data_ptr() for region in regions), 0, HALF, torch.device("cpu")
    )
    one.state[0] = 2**31 - 1
    regions[0][SIGNALS].view(torch.int32).fill_(-(2**31))
    assert torch.equal(one(torch.ones(8)), torch.ones(8))
    assert one.state[0] == -(2**31)
