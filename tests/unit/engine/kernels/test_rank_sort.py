from __future__ import annotations

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("count", [1, 31, 200])
@pytest.mark.parametrize("descending", [False, True])
def test_equal_numbers_stay_in_their_order(triton_interpreter, count, descending) -> None:
    from kvasir_engine.kernels.rank_sort import rank_sort

    keys = torch.randint(0, 9, (count,), dtype=torch.int32, device=DEVICE)
    want = torch.sort(keys, stable=True, descending=descending).indices
    assert torch.equal(rank_sort(keys, descending=descending).long(), want)
