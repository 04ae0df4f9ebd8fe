from __future__ import annotations

import torch

from kvasir_engine.runner.token_inputs import token_inputs_on, torch_token_inputs

HISTORY = torch.arange(40, dtype=torch.int32).view(4, 10) + 100
COMPUTED = torch.tensor([2, 9, 0, 4], dtype=torch.int32)
TABLE = torch.arange(12, dtype=torch.int32).view(4, 3) * 7


def test_the_first_token_that_has_not_been_computed() -> None:
    rows = torch.tensor([3, 1, 1, 0])
    ids, positions, lens, slots = torch_token_inputs(rows, COMPUTED, HISTORY, TABLE, 4)
    assert ids.tolist() == [134, 119, 119, 102]
    assert positions.tolist() == [4, 9, 9, 2]
    assert lens.tolist() == [5, 10, 10, 3]
    assert slots.tolist() == [70 * 4, 35 * 4 + 1, 35 * 4 + 1, 2]


def test_those_behind_it() -> None:
    rows, offsets = torch.tensor([0, 0, 2]), torch.tensor([0, 6, 3], dtype=torch.int32)
    ids, positions, lens, slots = torch_token_inputs(rows, COMPUTED, HISTORY, TABLE, 4, offsets)
    assert ids.tolist() == [102, 108, 123]
    assert positions.tolist() == [2, 8, 3]
    assert lens.tolist() == [3, 9, 4]
    assert slots.tolist() == [2, 14 * 4, 42 * 4 + 3]
    assert COMPUTED.tolist() == [2, 9, 0, 4]


def test_torch_on_the_cpu() -> None:
    assert token_inputs_on(torch.device("cpu")) is torch_token_inputs
