"""Regular expressions of schemas match the same, or less, as the library reads them."""

from __future__ import annotations

import pytest

from kvasir_engine.grammar.lark import LarkWriter, regex
from kvasir_engine.grammar.schema_regex import portable

from .test_lark import taker


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^[\w-\.]+@([\w-]+\.)+[\w-]{2,4}$", ["b.c-d@e-f.gh"], ["b", "é@e.gh"]),
        (r"\d", ["9"], ["a", "\u0663"]),
        (r"[\d-]", ["9", "-"], ["a", "\u0663"]),
        (r"[^\d]", ["a", "é"], ["9"]),
        (r"\w+", ["a_9Z"], ["-", "é"]),
        (r"\W", ["-"], ["a"]),
        (r"\s", [" ", "\n", "\v"], ["a", "\x85"]),
        (r"[\sa]", [" ", "a"], ["\x85"]),
        (r"\S", ["a", "é"], [" ", "\n"]),
        ("a{2", ["a{2"], ["aa"]),
        ("a{2}", ["aa"], ["a", "a{2}"]),
        ("a{1,}b{0,1}", ["aaab", "a"], ["abb"]),
        ("{}", ["{}"], [""]),
        ("[[]", ["["], ["[["]),
        ("[a&&b]", ["a", "&", "b"], ["c"]),
        ("[a~~b]", ["~"], ["c"]),
        ("[-a]", ["-", "a"], ["b"]),
        ("[^-a]", ["b"], ["-", "a"]),
        ("[a-]", ["-", "a"], ["b"]),
        ("[a-c]", ["b"], ["-", "d"]),
        ("[+--]", ["+", ",", "-"], ["."]),
        (r"[a\-z]", ["-"], ["b"]),
        (r"[a-\d]", ["-", "9"], ["b"]),
        (r"[\]a]", ["]"], ["b"]),
        (r"\<a\>", ["<a>"], ["a"]),
        (r"\\", ["\\"], ["\\\\"]),
        (r"[\\^]", ["\\", "^"], ["a"]),
        ("(a|(b))", ["a", "b"], ["ab"]),
        ("", [""], ["a"]),
    ],
)
def test_it_matches_no_more(pattern: str, right: list[str], wrong: list[str]) -> None:
    takes = taker(LarkWriter(), regex(portable(pattern)))
    assert [text for text in right if not takes(text)] == []
    assert [text for text in wrong if takes(text)] == []


@pytest.mark.parametrize("pattern", ["[a", "(a", "a)", "a\\", "[a\\]", "(a))("])
def test_what_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="has no"):
        portable(pattern)
