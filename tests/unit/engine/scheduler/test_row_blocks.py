"""Who gives way when blocks run out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_row_whose_last_token_is_in_flight_is_waited_for(
    engine_model: Make, overlap: bool
) -> None:
    """It returns its blocks by itself, so that preempting it, or for it, would be in vain."""
    engine = engine_model(num_blocks=(17,), rows=3, budget=64, overlap=overlap)
    engine.add([5] * 31, max_tokens=20)
    engine.add([6] * 31, max_tokens=2)
    engine.run()
    assert engine.counters.preemptions == 0


def test_one_last_token_may_not_be_enough(engine_model: Make) -> None:
    """Two rows ask for a block each, and what ends returns only one."""
    engine = engine_model(num_blocks=(17,), rows=3, budget=64)
    engine.add([5] * 31, max_tokens=20)
    engine.add([6] * 27, max_tokens=20)
    engine.add([7] * 3, max_tokens=2)
    engine.run()
    assert engine.counters.preemptions == 1
