"""What failures mean, and what they allow."""

import json

import pytest

from kvasir_router.fleet.retry_budget import RetryBudget
from kvasir_router.proxy.failures.failure import MAX_HANDOVERS, Failure, Kind, Moves, of_answer


def error(code: str | None) -> bytes:
    return json.dumps({"error": {"message": "m", "code": code}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "contract", "failure"),
    [
        (200, b"", True, None),
        (400, b"", True, None),
        (404, b"", True, None),
        (501, b"", True, None),
        (429, b"", True, Failure("429", Kind.CHARGED)),
        (500, b"", True, Failure("500", Kind.CHARGED)),
        (503, error("draining"), True, Failure("draining", Kind.LEAVING)),
        (503, error("handover"), True, Failure("handover", Kind.HANDOVER)),
        (503, error("engine_dead"), True, Failure("engine_dead", Kind.DEATH)),
        (503, error("engine_dead"), False, Failure("503", Kind.CHARGED)),
        (503, error(None), True, Failure("503", Kind.CHARGED)),
        (503, b"nonsense", True, Failure("503", Kind.CHARGED)),
        (502, error("draining"), True, Failure("502", Kind.CHARGED)),
    ],
)
def test_answers(status: int, body: bytes, contract: bool, failure: Failure | None) -> None:
    assert of_answer(status, body, contract) == failure


def test_charged_moves_are_few_and_on_the_budget() -> None:
    budget = RetryBudget(floor=3)
    moves = Moves(max_free=3)
    assert [moves.allows(Kind.CHARGED, budget, 1.0) for _ in range(3)] == [True, True, False]
    other = Moves(max_free=3)
    assert [other.allows(Kind.CHARGED, budget, 1.0) for _ in range(2)] == [True, False]
    assert budget.refused == 1


def test_leaving_and_dying_replicas_share_the_free_moves() -> None:
    budget = RetryBudget(floor=0)
    moves = Moves(max_free=3)
    kinds = [Kind.LEAVING, Kind.DEATH, Kind.LEAVING, Kind.LEAVING]
    assert [moves.allows(kind, budget, 1.0) for kind in kinds] == [True, True, True, False]
    assert moves.allows(Kind.UNSENT, budget, 1.0)


def test_handovers_leave_the_free_moves_for_other_ends() -> None:
    budget = RetryBudget(floor=0)
    moves = Moves(max_free=1)
    assert all(moves.allows(Kind.HANDOVER, budget, 1.0) for _ in range(MAX_HANDOVERS))
    assert moves.allows(Kind.DEATH, budget, 1.0)
    assert not moves.allows(Kind.HANDOVER, budget, 1.0)
    assert not Moves(max_free=0).allows(Kind.HANDOVER, budget, 1.0)


def test_the_second_death_is_the_last() -> None:
    moves = Moves(max_free=3)
    assert not moves.failed(Kind.DEATH)
    assert not moves.failed(Kind.LEAVING)
    assert not moves.failed(Kind.CHARGED)
    assert moves.failed(Kind.DEATH)
