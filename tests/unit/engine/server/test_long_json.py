"""Long lists in JSON: the bytes are those of plain lists, and others have their turns meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from support.loop_clock import LoopClock

from kvasir_engine.server.long_json import PART_BYTES, LongList, LongObject, encode_in_turns
from kvasir_engine.server.loop_turns import LoopTurns


def documents(made: Callable[[Iterable[Any]], Any]) -> list[Any]:
    """Documents with lists that `made` makes of their elements."""
    return [
        {"text": "no \0 list"},
        made([]),
        {"a": made([1]), "b": [{"c": made([]), "\0": "\\u0000"}, made(["x\0y", None, {"z": []}])]},
        [made(range(3)), made(range(50_000)), "between", made([2.5])],
    ]


@pytest.mark.parametrize("at", range(len(documents(list))))
async def test_the_bytes_are_those_of_plain_lists(at: int) -> None:
    parts = await encode_in_turns(documents(LongList)[at], LoopTurns())
    assert b"".join(parts) == msgspec.json.encode(documents(list)[at])


async def test_long_lists_and_objects_hold_others_and_a_name_counts_once() -> None:
    document = {
        "a": LongList([{"b": LongObject([("c", LongList([1, 2])), ("c", 3), ("d", {})])}, 4]),
        "e": LongObject([]),
        "f": [LongObject([("\0 é", LongObject([("g", 5.0)]))]), 6],
    }
    parts = await encode_in_turns(document, LoopTurns())
    assert b"".join(parts) == msgspec.json.encode(
        {"a": [{"b": {"c": [1, 2], "d": {}}}, 4], "e": {}, "f": [{"\0 é": {"g": 5.0}}, 6]}
    )


async def test_others_have_turns_between_elements_that_take_long() -> None:
    clock = LoopClock()
    made_at: list[int] = []

    def element(number: int) -> dict[str, int]:
        made_at.append(clock.turn)
        return {"n": number}

    await encode_in_turns({"a": LongList(map(element, range(100)))}, LoopTurns(seconds=0.0))
    assert len(made_at) == 100
    assert max(Counter(made_at).values()) <= 2


async def test_a_short_document_is_one_part_in_one_turn() -> None:
    clock = LoopClock()
    document = {"choices": [{"logprobs": LongList([1, 2])} for _ in range(8)]}
    [_] = await encode_in_turns(document, LoopTurns(seconds=60.0))
    assert clock.turn == 1


async def test_parts_are_short() -> None:
    parts = await encode_in_turns(LongList(["x" * 1000] * 1000), LoopTurns())
    assert len(parts) > 10
    assert max(map(len, parts)) < PART_BYTES + 2000


async def test_what_has_no_json_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="object has no JSON"):
        await encode_in_turns({"a": object()}, LoopTurns())
