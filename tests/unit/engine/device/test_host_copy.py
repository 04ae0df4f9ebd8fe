"""Results on their way to the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvasir_engine.device import collectives
from kvasir_engine.device.host_copy import HostCopy


@pytest.mark.parametrize("rank", [0, 1])
def test_every_tensor_arrives_under_its_name(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 2))
    tensors = {"tokens": torch.tensor([3, 1], dtype=torch.int32), "scores": torch.ones(2, 3)}
    arrays = HostCopy(tensors).wait()
    assert {name: (a.dtype, a.tolist()) for name, a in arrays.items()} == {
        "tokens": (np.int32, [3, 1]),
        "scores": (np.float32, [[1.0] * 3] * 2),
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies from a GPU need one")
def test_a_copy_holds_what_stood_there_when_it_began() -> None:
    source = torch.arange(1 << 20, device="cuda")
    copy = HostCopy({"numbers": source})
    source.zero_()
    assert copy.wait()["numbers"][-1] == (1 << 20) - 1
