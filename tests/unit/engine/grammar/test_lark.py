"""Parts of a grammar, and what the library takes them for."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from kvasir_engine.grammar.constraint import Constraint, ConstraintKind
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.lark import (
    ANY_TEXT,
    LarkWriter,
    any_of,
    json_value,
    literal,
    optional,
    regex,
    sequence,
    token,
    without,
)
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.grammar.matcher import GrammarMatcher

from .walks import BYTES, END, ByteTokenizer, following

BACKEND = GuidanceBackend(ByteTokenizer(), BYTES + 1, [END])  # type: ignore[arg-type]


def matcher(text: str) -> GrammarMatcher:
    return BACKEND.compile(Constraint(ConstraintKind.LARK, text)).matcher([END])


def taker(lark: LarkWriter, start: str) -> Callable[[str | bytes], bool]:
    """Tell whether a text is of the grammar."""
    grammar = BACKEND.compile(Constraint(ConstraintKind.LARK, lark.text(start)))

    def takes(text: str | bytes) -> bool:
        made = grammar.matcher([END])
        whole = text.encode() if isinstance(text, str) else text
        return all(map(made.accept, whole)) and END in following(made)

    return takes


@pytest.mark.parametrize(
    "text",
    ["", "a", 'a "b"', "\\", "é\N{GRINNING FACE}\u2028", "\x00\x1f\x7f\t\n", "/*//#", "<[3]>"],
)
def test_a_literal_is_its_text(text: str) -> None:
    lark = LarkWriter()
    assert taker(lark, sequence(literal("("), literal(text), literal(")")))(f"({text})")
    assert taker(lark, sequence(literal("("), lark.terminal(literal(text) + ' ")"')))(f"({text})")


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("", [""], ["a"]),
        ("a/b", ["a/b"], ["a"]),
        ("a\\/b", ["a/b"], ["a\\/b"]),
        ("[/\\\\]", ["/", "\\"], ["//"]),
        ("a\nb", ["a\nb"], ["ab"]),
        ("a#b//c", ["a#b//c"], ["a"]),
    ],
)
def test_a_regular_expression_is_one_of_the_whole(
    pattern: str, right: list[str], wrong: list[str]
) -> None:
    takes = taker(LarkWriter(), regex(pattern))
    assert [text for text in right if not takes(text)] == []
    assert [text for text in wrong if takes(text)] == []


def test_parts_are_put_together() -> None:
    lark = LarkWriter()
    one = lark.rule(any_of([literal("a"), literal("b")]))
    takes = taker(lark, sequence(one, "", optional(literal("c")), one))
    assert [text for text in ("ab", "bcb", "acc", "a") if takes(text)] == ["ab", "bcb"]
    assert lark.rule(any_of([literal("a"), literal("b")])) == one


def test_a_token_is_named_by_its_id() -> None:
    assert following(matcher(f"start: {token(65)}")) == [65]


def test_a_json_value_has_as_much_space_as_it_may() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    takes = taker(LarkWriter(), json_value(schema))
    assert takes("[1,\n 2 ]")
    assert not takes("[1" + " " * 17 + "]")
    compact = taker(LarkWriter(), json_value(schema, compact=True))
    assert compact("[1, 2]")
    assert not compact("[1,2]")


def test_a_text_is_without_what_it_must_not_hold() -> None:
    lark = LarkWriter()
    takes = taker(lark, lark.terminal(f"{without(['</a>', '<b'])}"))
    assert takes("")
    assert takes("a < b </a <é")
    assert not takes("a</a>")
    assert not takes("a<b c")
    assert not takes(b"\xff")
    assert without([]) == ANY_TEXT


@pytest.mark.parametrize("seed", range(3))
def test_a_lazy_rule_ends_with_the_first_of_its_markers(seed: int) -> None:
    lark = LarkWriter()
    head = lark.rule(sequence(without(["<a>"]), literal("<a>")), lazy=True)
    takes = taker(lark, f"({head} {literal('!')})* {lark.terminal(without(['<a>']))}")
    draw = random.Random(seed)
    for _ in range(200):
        text = "".join(draw.choices(["<", "a", ">", "<a>", "<a>!", "!", "b"], k=draw.randint(0, 8)))
        assert takes(text) == (re.search("<a>(?!!)", text) is None), text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "Expected token ':'"),
        ("start: other", "unknown name"),
        ("start: <[9999]>", "Token range end too large"),
        ('start: %json {"not": {}}', "not"),
        ("start: /(/", "invalid regex"),
    ],
)
def test_what_is_no_grammar_is_refused_in_a_line(text: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(words)) as refused:
        matcher(text)
    assert "\n" not in str(refused.value)
