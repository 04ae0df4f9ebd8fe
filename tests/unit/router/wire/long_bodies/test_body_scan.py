"""Outlines of long bodies: what Python's json finds in them, read in any pieces."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.json_values import JSON_VALUES

from kvasir_router.wire.long_bodies import body_scan
from kvasir_router.wire.long_bodies.body_scan import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    BodyError,
    BodyScan,
    Outline,
    outline_of,
)

NAMES = ("messages", "model", "prompt", "stream")

members = st.dictionaries(st.sampled_from(["content", "role", "contents"]), JSON_VALUES)
bodies = st.builds(
    lambda body, listed: body if listed is None else {**body, "messages": listed},
    st.dictionaries(st.sampled_from(NAMES) | st.text('abcé"\\', max_size=3), JSON_VALUES),
    st.none() | st.lists(members | JSON_VALUES, max_size=4),
)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    assert body_scan.build(), "these tests need a C compiler"


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


def scan_in_pieces(data: bytes, size: int) -> Outline:
    scan = BodyScan(NAMES)
    for at in range(0, len(data), size):
        scan.feed(data[at : at + size])
    return scan.end()


def found(data: bytes, outline: Outline) -> object:
    elements = [
        (data[span.start : span.end], data[span.content_start : span.content_end], span.values)
        for span in outline.elements()
    ]
    return {name: outline.raw(data, name) for name in outline.members}, elements


@given(bodies, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 9))
def test_members_are_where_json_finds_them(
    body: dict[str, Any], indent: int | None, ascii_only: bool, size: int
) -> None:
    data = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    if any("\\" in json.dumps(name, ensure_ascii=ascii_only) for name in body):
        with pytest.raises(BodyError, match="backslashes"):
            scan_in_pieces(data, size)
        return
    outline = scan_in_pieces(data, size)
    loaded = json.loads(data)
    for name in NAMES:
        assert (name in outline.members) is (name in loaded)
        if name in loaded:
            assert json.loads(outline.raw(data, name)) == loaded[name]
            assert outline.members[name].values == count(loaded[name])
    listed = loaded.get("messages")
    expected = listed if isinstance(listed, list) else []
    assert [json.loads(data[span.start : span.end]) for span in outline.elements()] == expected
    assert [span.values for span in outline.elements()] == [count(each) for each in expected]
    for each, span in zip(expected, outline.elements(), strict=True):
        content = data[span.content_start : span.content_end]
        assert bool(content) is (isinstance(each, dict) and "content" in each)
        if content:
            assert json.loads(content) == each["content"]
            assert span.content_values == count(each["content"])
    assert found(data, outline) == found(data, outline_of(data, NAMES))


def accepted(data: bytes) -> bool:
    try:
        outline_of(data, NAMES)
    except BodyError:
        return False
    return True


def refuse_constant(name: str) -> None:
    raise ValueError(name)


@given(
    st.text('{}[]":,\\ \n\t01.eE+-tfnul/rsa\x00\x1f', max_size=24),
    st.sampled_from(["", '{"a":', '{"a":[1,']),
)
@example('{"a":01}', "")
@example('{"a":"\\u12g4"}', "")
@example('{"a":"\\x"}', "")
@example("{}x", "")
@example("-", '{"a":')
@example("1.e5}", '{"a":')
def test_what_is_no_json_object_is_refused_and_nothing_else_is(text: str, start: str) -> None:
    data = start + text
    try:
        loaded = json.loads(data, parse_constant=refuse_constant)
    except ValueError:
        loaded = None
    if isinstance(loaded, dict) and any("\\" in json.dumps(name) for name in loaded):
        return
    assert accepted(data.encode()) is isinstance(loaded, dict)


def test_the_last_member_of_a_name_counts_as_it_does_for_engines() -> None:
    data = b'{"model":"a","messages":[1,2],"model" : "b" ,"messages":[3]}'
    outline = outline_of(data, NAMES)
    assert outline.raw(data, "model") == b'"b"'
    assert [data[span.start : span.end] for span in outline.elements()] == [b"3"]


@pytest.mark.parametrize("name", ["mode\\u006c", "\\u006dodel"])
def test_no_spelling_hides_a_name(name: str) -> None:
    with pytest.raises(BodyError, match="backslashes"):
        outline_of(b'{"model":"a","%b":"b"}' % name.encode(), NAMES)


def test_names_below_the_top_are_no_members() -> None:
    data = b'{"x":{"model":"a","mo\\u0064el":1},"y":[{"model":"b"}]}'
    assert not outline_of(data, NAMES).members


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded(open_: bytes, close: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":%b0%b}' % (open_ * depth, close * depth)

    assert accepted(nested(MAX_DEPTH - 1))
    with pytest.raises(BodyError, match=f"more than {MAX_DEPTH} levels"):
        outline_of(nested(MAX_DEPTH), NAMES)
    assert not accepted(b"[" * 100_000)


def test_more_elements_than_are_noted_are_passed_over() -> None:
    data = b'{"messages":[%b],"model":"m"}' % b",".join([b"{}"] * (MAX_ELEMENTS + 9))
    outline = outline_of(data, NAMES)
    assert len(list(outline.elements())) == MAX_ELEMENTS
    assert outline.members["messages"].values == MAX_ELEMENTS + 10
    assert outline.raw(data, "model") == b'"m"'


@pytest.mark.parametrize(
    "unit",
    [b"{}", b"[[]]", b'""', b"1", b"1.5e3", b'{"a":0}', b"[" * 400 + b"]" * 400, b'"\\u00e9"'],
)
def test_memory_does_not_depend_on_what_is_repeated(unit: bytes) -> None:
    for size in (1 << 16, 1 << 22):
        data = b'{"messages":[%b]}' % b",".join([unit] * (size // len(unit)))
        tracemalloc.start()
        outline_of(data, NAMES)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 320 << 10  # the state, a piece of the body, the elements' places


@given(bodies.filter(lambda body: "model" in body), JSON_VALUES)
def test_a_replaced_member_is_the_only_change(body: dict[str, Any], value: Any) -> None:
    body = {name: each for name, each in body.items() if "\\" not in json.dumps(name)}
    data, new = json.dumps(body).encode(), json.dumps(value).encode()
    outline = outline_of(data, NAMES)
    changed = outline.replaced(data, "model", new)
    assert json.loads(changed) == {**json.loads(data), "model": json.loads(new)}
    after = outline.after_replacing("model", len(new))
    assert found(changed, after) == found(changed, outline_of(changed, NAMES))
    resumed = b'{"resume":{},' + changed[1:]
    replaced = json.loads(after.replaced(resumed, "model", b"7"))
    assert replaced == {**json.loads(data), "resume": {}, "model": 7}
