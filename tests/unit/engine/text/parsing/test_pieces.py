from __future__ import annotations

import pytest

from kvasir_engine.text.parsing.pieces import Kind, Piece, find_first, held_back


def test_a_piece_counts_what_a_client_gets() -> None:
    assert Piece(Kind.CONTENT, "äb").units == 2
    assert Piece(Kind.ARGUMENTS, "{}").units == 2
    assert Piece(Kind.CALL, "get_weather").units == 1
    assert Piece(Kind.CALL_END).units == 0


@pytest.mark.parametrize(
    ("text", "held"),
    [("", 0), ("a", 0), ("a<", 1), ("a<t", 2), ("<to>", 0), ("<tool>", 0), ("<<", 1), ("[", 1)],
)
def test_only_what_may_begin_a_marker_is_held_back(text: str, held: int) -> None:
    assert held_back(text, ("<tool>", "[[x")) == held
    assert held_back(text, ()) == 0


def test_the_first_marker_is_found() -> None:
    assert find_first("a]b[", ("[", "]")) == (1, "]")
    assert find_first("ab", ("[", "]")) == (2, "")
