"""Collectives without a group, and of a rank that pretends to be in one."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.device import collectives
from kvasir_engine.device.collectives import (
    all_gather,
    all_reduce,
    all_reduce_min,
    as_lone_rank,
    collectives_capturable,
    tensor_parallel,
)


def test_a_process_alone_keeps_what_it_has() -> None:
    x = torch.ones(2, 3)
    assert all_reduce(x) is x
    assert all_gather(x) is x
    assert all_reduce_min([3, 1]) == [3, 1]
    assert collectives_capturable()


def test_a_lone_rank_has_the_shapes_of_a_group() -> None:
    with as_lone_rank(4):
        assert (tensor_parallel().rank, tensor_parallel().size) == (0, 4)
        assert all_gather(torch.ones(2, 3)).shape == (2, 12)
        assert all_reduce(torch.ones(2, 3)).shape == (2, 3)
        assert collectives_capturable()
    assert tensor_parallel().size == 1
    with as_lone_rank(1):
        assert tensor_parallel().communicator is None


@pytest.mark.parametrize("shape", [(2, 3, 1), (3, 1), (1, 4), (3, 4)])
def test_what_is_gathered_lies_in_order(shape: tuple[int, ...], monkeypatch) -> None:
    """A view whose rows lie apart would be read wrongly by kernels."""
    with as_lone_rank(2):
        communicator = tensor_parallel().communicator
        monkeypatch.setattr(communicator, "all_gather", lambda x: torch.stack([x, x + 100]))
        x = torch.arange(torch.Size(shape).numel()).view(shape)
        found = collectives.all_gather(x)
    assert torch.equal(found, torch.cat([x, x + 100], dim=-1))
    assert found.is_contiguous()
