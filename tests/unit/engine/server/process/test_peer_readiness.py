"""All API processes are there before one of them says so."""

from pathlib import Path

import pytest

from kvasir_engine.server.process.peer_readiness import RollCall


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_it_is_complete_when_the_last_one_is_here(tmp_path: Path, order) -> None:
    rolls = [RollCall(tmp_path, index, 3) for index in range(3)]
    for index in order:
        assert not any(roll.complete for roll in rolls)
        rolls[index].here()
    assert all(roll.complete for roll in rolls)


def test_one_alone_is_complete_at_once(tmp_path: Path) -> None:
    roll = RollCall(tmp_path, 0, 1)
    assert not roll.complete
    roll.here()
    assert roll.complete
