"""One call's arguments: literals become JSON, and nothing else is taken."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_engine.text.parsing.pieces import Kind
from kvasir_engine.text.parsing.pythonic.python_reader import PythonCallReader
from kvasir_engine.text.parsing.schema_values import ValueForm


def read(text: str, *kinds: str) -> str | None:
    """The arguments of a call, None where it is not complete."""
    reader = PythonCallReader("f", lambda _: ValueForm(frozenset(kinds)))
    assert reader.read(text) <= len(text)
    made = [piece.text for piece in reader.take_pieces() if piece.kind is Kind.ARGUMENTS]
    return "".join(made) if reader.done else None


@pytest.mark.parametrize(
    "text",
    [
        "1)",
        "**x)",
        "a=g())",
        "a=b)",
        "a)",
        "=1)",
        "a b=1)",
        "a=1 2)",
        "a=1+2)",
        "a=b'x')",
        "a={1, 2})",
        "a={**b})",
        "a={'b'})",
        "a={[1]: 2})",
        "a=[1 2])",
        "a=[,])",
        "a=(1])",
        "a=1j)",
        "a=nan)",
        "a=inf)",
        "a=0777)",
        "a=--1)",
        "a='\\N{DIGIT ONE}')",
        "a='\\xZ1')",
        "a='\\U00110000')",
        "a='x' + 'y')",
        "a=lambda: 1)",
        "a=1,,)",
        "a=1",
        "a='x)",
    ],
)
def test_only_literals_are_arguments(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (")", "{}"),
        ("a=[true, None], b={'c': (1, -2.5)})", '{"a": [true, null], "b": {"c": [1, -2.5]}}'),
        (" a = 1 ,\n b=\t'x' , )", '{"a": 1, "b": "x"}'),
        ("a={1: {}, None: [[],],})", '{"a": {"1": {}, "null": [[]]}}'),
        ("a=+5, b=.5, c=1_000, d=0b11)", '{"a": 5, "b": 0.5, "c": 1000, "d": 3}'),
        ("a='', b=\"\", c='''''', d='' 'x')", '{"a": "", "b": "", "c": "", "d": "x"}'),
        ("a='''x'y''z''', b=\"\"\"\"q\"\"\")", '{"a": "x\'y\'\'z", "b": "\\"q"}'),
        ("a='\\ud83d\\ude00', b='\\101\\7z')", '{"a": "\\ud83d\\ude00", "b": "A\\u0007z"}'),
        ("a='a\\\nb', b='c\nd')", '{"a": "ab", "b": "c\\nd"}'),
        ("a='\\/ \\d', a=2)", '{"a": "/ \\\\d", "a": 2}'),
    ],
)
def test_literals_become_json(text: str, arguments: str) -> None:
    assert read(text) == arguments
    json.loads(arguments)


@pytest.mark.parametrize(
    ("kinds", "text", "value"),
    [
        (("string",), "7", '"7"'),
        (("string",), "True", '"True"'),
        (("string",), "None", "null"),
        (("string",), "[1]", "[1]"),
        (("integer",), "'7'", "7"),
        (("boolean",), "'True'", "true"),
        (("array",), "'[1]'", "[1]"),
        (("integer",), "'x'", '"x"'),
        (("integer", "string"), "'7'", '"7"'),
        ((), "'7'", '"7"'),
    ],
)
def test_a_value_has_a_type_of_its_parameter(kinds: tuple[str, ...], text: str, value: str) -> None:
    assert read(f"a={text})", *kinds) == f'{{"a": {value}}}'


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abc"), VALUES), st.booleans())
def test_what_python_writes_is_read_back(values: dict[str, Any], as_json: bool) -> None:
    write = json.dumps if as_json else repr
    text = ", ".join(f"{name}={write(value)}" for name, value in values.items())
    made = read(f"{text})")
    assert made is not None
    assert json.loads(made) == values
    made.encode()


@given(st.text(alphabet="'\"\\\n xu0417an", max_size=12))
def test_strings_are_those_of_python(inner: str) -> None:
    text = f"'{inner}'"
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return
    prefixed = any(f"{quote}u{quote}" in text.replace(" ", "") for quote in "'\"")
    if isinstance(value, str) and not prefixed:
        made = read(f"a={text})")
        assert made is not None
        assert json.loads(made)["a"] == value
