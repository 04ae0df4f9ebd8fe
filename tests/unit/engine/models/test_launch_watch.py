"""Which operations wait for the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvasir_engine.models.launch_watch import WaitsForDeviceError, only_launches

CPU = torch.device("cpu")
NUMBERS = torch.arange(6.0)
WAITING: list[Callable[[], object]] = [
    lambda: NUMBERS.sum().item(),
    lambda: bool((NUMBERS > 2).any()),
    lambda: NUMBERS.nonzero(),
    lambda: NUMBERS[NUMBERS > 2],
    lambda: torch.masked_select(NUMBERS, NUMBERS > 2),
    lambda: NUMBERS.unique(),
]
LAUNCHING: list[Callable[[], object]] = [
    lambda: NUMBERS[torch.tensor([1, 2])],
    lambda: torch.where(NUMBERS > 2, NUMBERS, 0.0),
    lambda: NUMBERS.softmax(0).topk(2),
    lambda: NUMBERS.view(2, 3) @ NUMBERS.view(3, 2),
]


@pytest.mark.parametrize("waits", WAITING)
def test_what_depends_on_values_is_refused(waits) -> None:
    with pytest.raises(WaitsForDeviceError, match="depends on values"), only_launches(CPU):
        waits()


@pytest.mark.parametrize("launches", LAUNCHING)
def test_what_only_launches_is_let_through(launches) -> None:
    with only_launches(CPU):
        launches()
