"""Items made of pieces, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.server.openai_responses.output_items import OutputItems
from kvasir_engine.text.parsing.pieces import Kind, Piece

PIECES = [
    Piece(Kind.REASONING, "Hm."),
    Piece(Kind.CONTENT, "I look."),
    Piece(Kind.CALL, "f"),
    Piece(Kind.ARGUMENTS, '{"a": 1}'),
    Piece(Kind.CALL_END),
    Piece(Kind.CALL, "g"),
    Piece(Kind.ARGUMENTS, '{"b'),
    Piece(Kind.CONTENT, "oops"),
]


def made(pieces: list[Piece]) -> tuple[OutputItems, list[tuple[str, int | None]]]:
    told: list[tuple[str, int | None]] = []

    def tell(kind: str, units: int | None, **fields: Any) -> None:
        told.append((kind, units))

    items = OutputItems("resp_1", lambda number: f"call_{number}", tell)
    for piece in pieces:
        items.take([piece], [])
    items.close("completed")
    return items, told


def test_each_kind_is_an_item_and_a_broken_call_is_incomplete() -> None:
    items, _ = made(PIECES)
    assert [(each["type"], each["status"]) for each in items.all()] == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    calls = [each for each in items.all() if each["type"] == "function_call"]
    assert [each["call_id"] for each in calls] == ["call_0", "call_1"]
    assert len({each["id"] for each in items.all()}) == 5


def test_steps_do_not_depend_on_the_cuts() -> None:
    letters = [
        Piece(piece.kind, letter)
        for piece in PIECES
        for letter in ([piece.text] if piece.kind in (Kind.CALL, Kind.CALL_END) else piece.text)
    ]
    whole, told = made(PIECES)
    cut, told_of_letters = made(letters)
    assert cut.all() == whole.all()
    assert [each for each in told_of_letters if each[1] is None] == [
        each for each in told if each[1] is None
    ]
    assert sum(units or 0 for _, units in told) == sum(units or 0 for _, units in told_of_letters)


def test_an_open_item_is_in_progress() -> None:
    items = OutputItems("resp_1", str, lambda kind, units, **fields: None)
    items.take([Piece(Kind.CONTENT, "a")], [])
    [item] = items.all()
    assert (item["status"], item["content"][0]["text"]) == ("in_progress", "a")


@pytest.mark.parametrize("kind", [Kind.CONTENT, Kind.REASONING])
def test_log_probabilities_are_those_of_the_text(kind: Kind) -> None:
    items = OutputItems("resp_1", str, lambda kind, units, **fields: None)
    assert not items.take([], ["one"])
    assert items.take([Piece(kind, "a")], ["one", "two"])
    expected = ["one", "two"] if kind is Kind.CONTENT else None
    assert items.all()[0]["content"][0].get("logprobs") == expected
