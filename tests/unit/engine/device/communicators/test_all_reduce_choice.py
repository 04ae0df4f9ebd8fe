"""Which all-reduce is chosen for which tensor."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.device.communicators.all_reduce_choice import (
    MAX_BUFFER_BYTES,
    MIN_BUFFER_BYTES,
    AllReduce,
    buffer_bytes_for,
    choose_all_reduce,
)

MB = 1 << 20
ONE, TWO, NCCL = AllReduce.ONE_SHOT, AllReduce.TWO_SHOT, AllReduce.NCCL


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "chosen"),
    [
        (2, 4, ONE),
        (2, MB, ONE),
        (2, MB + 16, TWO),
        (2, MB + 4, NCCL),
        (2, 16 * MB, TWO),
        (2, 16 * MB + 16, NCCL),
        (3, 512 << 10, ONE),
        (3, MB, NCCL),
        (4, 512 << 10, ONE),
        (4, MB, TWO),
        (8, 256 << 10, ONE),
        (8, MB, TWO),
        (2, 0, NCCL),
        (2, 6, NCCL),
    ],
)
def test_few_bytes_in_one_shot_more_in_two_and_the_rest_by_nccl(
    ranks: int, num_bytes: int, chosen: AllReduce
) -> None:
    found = choose_all_reduce(num_bytes, torch.bfloat16, ranks=ranks, buffer_bytes=16 * MB)
    assert found is chosen


@pytest.mark.parametrize(
    ("dtype", "chosen"), [(torch.float32, ONE), (torch.float16, NCCL), (torch.int64, NCCL)]
)
def test_types_that_torch_cannot_sum_there_are_nccls(dtype, chosen: AllReduce) -> None:
    assert choose_all_reduce(4096, dtype, ranks=2, buffer_bytes=MB) is chosen


@pytest.mark.parametrize(
    ("step", "buffer"),
    [
        (0, MIN_BUFFER_BYTES),
        (MIN_BUFFER_BYTES + 1, 2 * MIN_BUFFER_BYTES),
        (1 << 40, MAX_BUFFER_BYTES),
    ],
)
def test_the_buffer_holds_a_step_within_bounds(step: int, buffer: int) -> None:
    assert buffer_bytes_for(step) == buffer
