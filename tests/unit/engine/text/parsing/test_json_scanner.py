"""A scanner of prefixes, beside Python's own reader of whole texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import JSON_VALUES

from kvasir_engine.text.parsing.json_scanner import (
    MAX_DEPTH,
    At,
    JsonScanner,
    is_object,
    is_unicode,
)


def state_after(text: str) -> At | None:
    """The scanner's state; None where no JSON begins like `text`."""
    scanner = JsonScanner()
    return scanner.state if all(map(scanner.step, text)) else None


@given(JSON_VALUES, st.sampled_from([None, 1]), st.booleans())
def test_every_json_is_taken_whole_and_in_part(
    value: Any, indent: int | None, ascii_: bool
) -> None:
    text = json.dumps([value], indent=indent, ensure_ascii=ascii_)
    assert state_after(text) is At.DONE
    assert all(state_after(text[:size]) not in (None, At.DONE) for size in range(len(text)))


@given(JSON_VALUES, st.data())
def test_a_damaged_text_is_done_only_if_it_is_json(value: Any, data: st.DataObject) -> None:
    text = json.dumps({"k": value})
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from(list('{}[],:"\\tf0-.e x'))) + text[at + 1 :]
    try:
        json.loads(text, strict=False)
        good = True
    except ValueError:
        good = False
    if text.lstrip()[:1] in ("{", "["):
        assert (state_after(text.rstrip()) is At.DONE) is good


@pytest.mark.parametrize(
    "text",
    [
        "{,",
        "{1",
        "[1,]",
        '{"a" 1',
        '{"a":}',
        "[tru,",
        "[01",
        "[1.]",
        "[-]",
        '["\\x',
        '["\\u12g',
        "]",
        "[}",
        "[]x",
        "[NaN",
        "['",
    ],
)
def test_it_is_refused_where_no_json_goes_on(text: str) -> None:
    assert state_after(text) is None


def test_depth_has_a_bound() -> None:
    assert state_after("[" * MAX_DEPTH) is not None
    assert state_after("[" * (MAX_DEPTH + 1)) is None


def test_objects_and_unicode() -> None:
    assert is_object(' {"a": 1} ')
    assert not is_object("[1]")
    assert not is_object('{"a": 1')
    assert is_unicode("é")
    assert not is_unicode("\ud800")
