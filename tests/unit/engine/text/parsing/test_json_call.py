from __future__ import annotations

import pytest
from support.answer_texts import merged

from kvasir_engine.text.parsing.json_call import (
    MAX_HELD_CHARS,
    ArgumentsReader,
    CallReader,
    NamedCallReader,
)


def read(reader: CallReader, text: str, size: int = 1) -> list[list[object]]:
    pieces = []
    for at in range(0, len(text), size):
        reader.read(text[at : at + size])
        pieces += reader.take_pieces()
    return merged(pieces)["calls"]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_only_the_top_fields_name_the_call(size: int) -> None:
    text = (
        '{"x": {"name": "g"}, "name": "f", "arguments": {"name": "h", "arguments": {}}, "i": "1"}'
    )
    assert read(NamedCallReader(bool), text, size) == [
        ["f", '{"name": "h", "arguments": {}}', True]
    ]


def test_arguments_go_out_before_they_end() -> None:
    reader = NamedCallReader(bool)
    reader.read('{"name": "f", "arguments": {"a": "long')
    assert reader.started
    assert merged(reader.take_pieces())["calls"] == [["f", '{"a": "long', False]]
    reader.read(' text"}')
    assert [piece.text for piece in reader.take_pieces()] == [' text"}']
    assert reader.read("}, rest") == 1
    assert reader.done


def test_what_is_held_back_has_a_bound() -> None:
    reader = NamedCallReader(bool)
    reader.read('{"arguments": {"a": "' + "x" * MAX_HELD_CHARS)
    assert reader.failed
    assert not reader.started


def test_a_name_that_is_not_accepted_is_no_call() -> None:
    reader = NamedCallReader({"f"}.__contains__)
    assert reader.read('{"name": "g", "arguments": {}}') < 30
    assert reader.failed


@pytest.mark.parametrize(("text", "done"), [('{"a": 1} ', True), (' \n{"a"', False), ("{}", True)])
def test_arguments_alone(text: str, done: bool) -> None:
    reader = ArgumentsReader("f")
    [[name, arguments, complete]] = read(reader, text)
    assert (name, arguments, complete) == ("f", text.strip(), done)


def test_arguments_alone_are_an_object() -> None:
    reader = ArgumentsReader("f")
    assert reader.read("[1]") == 0
    assert (reader.failed, reader.started) == (True, False)
