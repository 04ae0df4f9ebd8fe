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


def test_each_step_back_doubles_up_to_the_settings() -> None:
    limit = StepLimit(1000, 20)
    limit.lower(1000, 20)
    limit.lower(60, 5)
    grown = [(limit.tokens, limit.rows)]
    while limit.lowered:
        for _ in range(RELAX_AFTER):
            limit.retired()
        grown.append((limit.tokens, limit.rows))
    assert grown[:5] == [(30, 3), (60, 6), (120, 12), (240, 20), (480, 20)]
    assert grown[-1] == (1000, 20)
    for _ in range(RELAX_AFTER):
        limit.retired()
    assert (limit.tokens, limit.rows) == (1000, 20)


def test_a_step_of_more_rows_than_are_allowed_lowers_what_is_allowed() -> None:
    limit = StepLimit(100, 4)
    limit.lower(900, 40)
    assert (limit.tokens, limit.rows) == (50, 4)
    limit.lower(50, 5)
    assert (limit.tokens, limit.rows) == (25, 3)
