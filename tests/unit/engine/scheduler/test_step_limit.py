from __future__ import annotations

from kvasir_engine.scheduler.step_limit import RELAX_AFTER, StepLimit


def test_half_of_the_step_that_ran_out_of_memory() -> None:
    limit = StepLimit(8192, 256)
    limit.lower(3000, 40)
    assert (limit.tokens, limit.rows, limit.lowered) == (1500, 20, True)
    limit.lower(1, 1)
    assert (limit.tokens, limit.rows) == (1, 1), "the smallest step is one token of one row"


def test_it_grows_again_while_steps_retire() -> None:
    limit = StepLimit(100, 10)
    limit.lower(100, 10)
    for _ in range(RELAX_AFTER - 1):
        limit.retired()
    assert (limit.tokens, limit.rows) == (50, 5)
    limit.retired()
    assert (limit.tokens, limit.rows, limit.lowered) == (100, 10, False)


def test_a_further_shortage_begins_the_count_anew() -> None:
    limit = StepLimit(100, 10)
    limit.lower(100, 10)
    for _ in range(RELAX_AFTER - 1):
        limit.retired()
    limit.lower(50, 5)
    limit.retired()
    assert (limit.tokens, limit.rows) == (25, 3)
