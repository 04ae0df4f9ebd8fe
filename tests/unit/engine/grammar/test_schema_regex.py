"""Regular expressions of schemas match the same, or less, as the library reads them."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvasir_engine.grammar.lark import LarkWriter, regex
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.grammar.schema_regex import FORMATS_AS_PATTERNS, portable, xgrammar_reads
from kvasir_engine.grammar.xgrammar_backend import Vocabulary, XGrammarBackend

from .test_lark import taker
from .walks import BYTES, END, ByteTokenizer, takes


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^[\w-\.]+@([\w-]+\.)+[\w-]{2,4}$", ["b.c-d@e-f.gh"], ["b", "é@e.gh"]),
        (r"\d", ["9"], ["a", "\u0663"]),
        (r"[\d-]", ["9", "-"], ["a", "\u0663"]),
        (r"[^\d]", ["a", "é"], ["9"]),
        (r"\S", ["a", "é"], [" ", "\x1c", "\u00a0", "\ufeff"]),
        (r"[\S\d]", ["a", "9"], [" ", "\ufeff"]),
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


WHOLE = "https://example.org/"
TAKEN = {
    "date": ["2024-02-29", "2000-02-29", "2023-12-31", "2023-04-30"],
    "time": ["23:59:59Z", "00:00:00.5+05:30"],
    "date-time": ["2024-02-29T23:59:59Z"],
    "hostname": ["a", "example.org", "a-b.c.d.e.f.g", f"{'a' * 63}.{'b' * 63}.{'c' * 63}"],
    "ipv4": ["0.0.0.0", "255.249.199.99"],
    "json-pointer": ["", "/", "/a~0b/~1/é", "/a b"],
    "relative-json-pointer": ["0#", "1/a", "2"],
    "uri-template": [WHOLE, f"{WHOLE}{{?a,b*}}", "{+path:12}/x%20y"],
}
REFUSED = {
    "date": [
        "0000-01-01",
        "0000-02-29",
        "2023-02-29",
        "1900-02-29",
        "2023-04-31",
        "2023-13-01",
        "2023-1-01",
    ],
    "time": ["23:59:60Z", "24:00:00Z", "12:00:00", "12:00:00+24:00"],
    "date-time": ["2023-02-29T23:59:59Z", "2024-02-29 23:59:59Z"],
    "hostname": ["", "-a", "a-", "a..b", "a" * 64, ".".join(["a" * 24] * 11), "a_b"],
    "ipv4": ["1.2.3", "01.2.3.4", "256.1.1.1"],
    "json-pointer": ["a", "/~", "/~2"],
    "relative-json-pointer": ["/a", "-1", "0##"],
    "uri-template": ["{", "}", "a b", "{a", "{}", 'a"b'],
}


@pytest.mark.parametrize("name", FORMATS_AS_PATTERNS)
def test_formats_are_exact(name: str) -> None:
    pattern = re.compile(FORMATS_AS_PATTERNS[name])
    assert [text for text in TAKEN[name] if not pattern.fullmatch(text)] == []
    assert [text for text in REFUSED[name] if pattern.fullmatch(text)] == []
    checker = Draft202012Validator.FORMAT_CHECKER
    assert all(checker.conforms(text, name) for text in TAKEN[name])


PARTS = ["a", "b", "[ab]", "[^b]", "(ab)", "(a|b)", "(|ab|b)", "(?:a|ba)"]
COUNTS = ["", "", "?", "*", "+", "{0,1}", "{0,2}", "{2}", "{1,2}", "{0,}"]
TEXTS = ["".join(each) for size in range(6) for each in itertools.product("ab", repeat=size)]


@pytest.mark.slow
def test_xgrammar_takes_what_the_patterns_say_that_it_is_left() -> None:
    backend = XGrammarBackend(Vocabulary.of(ByteTokenizer(), BYTES + 1, [END]))  # type: ignore[arg-type]
    draw = random.Random(0)
    for _ in range(500):
        parts = draw.choices(PARTS, k=draw.randint(1, 6))
        pattern = "".join(it if it[0] == "(" else it + draw.choice(COUNTS) for it in parts)
        asked = {"json": {"type": "string", "pattern": f"^{pattern}$"}}
        for text in draw.sample(TEXTS, 20):
            right = re.fullmatch(pattern, text) is not None
            assert takes(backend, asked, f'"{text}"') == right, (pattern, text)


def test_patterns_with_larger_groups_are_none_that_xgrammar_reads() -> None:
    read = ["", r"^\(a\)+$", "[(]+", "a(?:b|c)d", "[0-9]+(Mi|Gi)", *FORMATS_AS_PATTERNS.values()]
    left = ["(a*)", "a|b", "(a)?", "((a))", "(?:a)*"]
    assert [each for each in (*read, *left) if xgrammar_reads(each)] == read


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS_AS_PATTERNS)
def test_either_library_reads_them_so(name: str) -> None:
    asked = {"json": {"type": "string", "format": name}}
    tokens: Any = ByteTokenizer()
    backends = (
        XGrammarBackend(Vocabulary.of(tokens, BYTES + 1, [END])),
        GuidanceBackend(tokens, BYTES + 1, [END]),
    )
    for backend in backends:
        for right, texts in ((True, TAKEN[name]), (False, REFUSED[name])):
            written = [json.dumps(text, ensure_ascii=False) for text in texts]
            assert [text for text in written if takes(backend, asked, text) != right] == []
