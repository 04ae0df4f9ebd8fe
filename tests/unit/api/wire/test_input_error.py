from __future__ import annotations

from kvasir.wire.input_error import shown, unsupported


def test_long_values_are_cut() -> None:
    assert shown("x") == "'x'"
    assert len(shown("x" * 1000)) == 67


def test_what_is_not_served_has_a_code() -> None:
    error = unsupported("No.", "input")
    assert (str(error), error.param, error.code) == ("No.", "input", "unsupported")
