"""Prompts of long bodies: the text that short ones have, and bounded work and memory."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.wire.text_chain import BLOCK_ENDS, CHAT_FIELDS, chat_text, completion_pieces
from kvasir_router.wire.envelope import OUTLINED, read_outline
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies import body_scan, long_prompt
from kvasir_router.wire.long_bodies.body_scan import BodyError, outline_of
from kvasir_router.wire.long_bodies.long_prompt import read_long_prompt
from kvasir_router.wire.query import Query

MIB = 1 << 20

contents = st.one_of(
    st.text(max_size=40),
    st.none(),
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}), max_size=3),
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": contents}),
    st.fixed_dictionaries({"content": contents, "name": st.text(max_size=3), "role": st.text()}),
    st.integers(0, 9),
)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    assert body_scan.build(), "these tests need a C compiler"


def read(body: bytes, source: str = "messages", lora: str = "") -> long_prompt.LongPrompt:
    return read_long_prompt(body, outline_of(body, OUTLINED), source, lora)


@given(
    st.lists(messages, max_size=6),
    st.dictionaries(st.sampled_from(CHAT_FIELDS), st.lists(st.text(max_size=3), max_size=2)),
    st.booleans(),
    st.sampled_from([1, 7, 40, 64 * 1024]),
)
def test_the_text_is_a_short_body_s(
    listed: list[Any], fields: dict[str, Any], ascii_only: bool, decoded: int
) -> None:
    """Whatever is taken for long: `decoded` is what is decoded at once."""
    body = json.dumps({"messages": listed, **fields}, ensure_ascii=ascii_only).encode()
    expected = chat_text(fields, listed, lora="l")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_prompt, "_MAX_DECODED", decoded)
        prompt = read(body, lora="l")
    assert expected.startswith(prompt.text)
    if decoded > 40:
        assert prompt.text == expected
        assert prompt.size == len(expected)


@given(
    st.text() | st.text('\\"\U0001f600é\ud7ff', min_size=8),
    st.integers(0, 60),
    st.integers(1, 20),
    st.booleans(),
)
def test_no_character_of_a_text_is_cut(
    text: str, limit: int, decoded: int, ascii_only: bool
) -> None:
    raw = json.dumps(text, ensure_ascii=ascii_only).encode()
    span = body_scan.ValueSpan(0, len(raw), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_prompt, "_MAX_DECODED", decoded + 12)
        got, whole = long_prompt.string_text(raw, span, limit)
    assert text.encode().startswith(got)
    inner = raw[1:-1]
    assert whole is (len(inner) <= limit)
    if whole:
        assert got == text.encode()
    if b"\\" not in raw:
        assert got == inner[:limit]


def test_a_long_text_is_read_up_to_what_is_hashed() -> None:
    text = "The quick brown fox,\n" * 200_000
    chat = {"model": "m", "messages": [{"role": "user", "content": text, "name": "n"}]}
    prompt = read(json.dumps(chat).encode())
    expected = chat_text({}, chat["messages"])
    assert expected.startswith(prompt.text)
    assert len(prompt.text) > 0.9 * BLOCK_ENDS[-1]
    assert prompt.size > len(text)
    completion = read(json.dumps({"prompt": text}).encode(), "prompt")
    assert b"".join(completion_pieces({}, text)).startswith(completion.text)


def test_images_are_part_of_the_text() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * MIB}}]
    listed = [{"role": "user", "content": parts}, {"role": "user", "content": "b"}]
    prompt = read(json.dumps({"messages": listed}).encode())
    assert prompt.text == chat_text({}, listed)[: BLOCK_ENDS[-1]]


PARTS = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3000}},
    {"type": "text", "text": '\\\\ "]}\n' * 200},
    {"type": "text", "text": "漢😀" * 300},
    {"type": "text", "text": "", "x": [[], {}, [{"y": 1}]]},
]


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=5),
    st.integers(20, 4000),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_a_long_list_is_read_up_to_what_is_hashed(
    parts: list[Any], limit: int, ascii_only: bool, indent: int | None
) -> None:
    """`limit`: bytes of a list that are decoded."""
    listed = [{"role": "user", "content": parts}]
    body = json.dumps({"messages": listed}, ensure_ascii=ascii_only, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_prompt, "_MAX_DECODED", 20)
        patch.setattr(long_prompt, "_MAX_TEXT", limit)
        patch.setattr(long_prompt, "_MAX_WIDE", limit)
        prompt = read(body)
    assert chat_text({}, listed).startswith(prompt.text)


def test_an_image_of_any_size_is_told_from_others() -> None:
    def text(letter: str, size: int) -> bytes:
        url = f"data:image/png;base64,{letter * size}"
        parts = [
            {"type": "text", "text": '"a"\n'},
            {"image_url": {"url": url}, "type": "image_url"},
        ]
        body = {"messages": [{"role": "user", "content": parts}]}
        return read(json.dumps(body).encode()).text

    assert len(text("A", 10 * MIB)) > 0.9 * BLOCK_ENDS[-1]
    assert text("A", 10 * MIB) == text("A", 8 * MIB) != text("B", 8 * MIB)


def test_a_text_of_escapes_is_read_in_part() -> None:
    listed = [{"role": "user", "content": "\n" * MIB}]
    prompt = read(json.dumps({"messages": listed}).encode())
    assert chat_text({}, listed).startswith(prompt.text)
    assert 64 << 10 < len(prompt.text) <= 129 << 10


def repeated(unit: bytes, size: int) -> bytes:
    return b",".join([unit] * (size // (len(unit) + 1)))


def chat_of(listed: bytes, extra: bytes = b"") -> bytes:
    return b'{"model":"m",%b"messages":[%b]}' % (extra, listed)


def content_of(content: bytes) -> bytes:
    return chat_of(b'{"role":"user","content":%b}' % content)


SHAPES = {
    "empty_objects": lambda size: chat_of(repeated(b"{}", size)),
    "small_objects": lambda size: chat_of(repeated(b'{"a":0}', size)),
    "empty_strings": lambda size: chat_of(repeated(b'""', size)),
    "numbers": lambda size: chat_of(repeated(b"7", size)),
    "floats": lambda size: chat_of(repeated(b'{"content":[1.5e300,1e308]}', size)),
    "one_number": lambda size: chat_of(b"1" * size),
    "nested": lambda size: chat_of(repeated(b"[" * 400 + b"]" * 400, size)),
    "messages": lambda size: chat_of(repeated(b'{"role":"user","content":"hi"}', size)),
    "text": lambda size: content_of(b'"%b"' % (b"x" * size)),
    "text_and_one_emoji": lambda size: content_of(b'"%b"' % ("😀" + "x" * size).encode()),
    "unicode": lambda size: content_of(b'"%b"' % ("漢" * (size // 3)).encode()),
    "escapes": lambda size: content_of(b'"%b"' % (b"\\n" * (size // 2))),
    "backslashes": lambda size: content_of(b'"%b"' % (b"\\\\" * (size // 2))),
    "surrogates": lambda size: content_of(b'"%b"' % (b"\\ud83d\\ude00" * (size // 12))),
    "dense_content": lambda size: content_of(b"[%b]" % repeated(b"{}", size)),
    "image": lambda size: content_of(b'[{"url":"%b"}]' % (b"A" * size)),
    "wide_image": lambda size: content_of(b'[{"url":"\\ud83d\\ude00%b"}]' % (b"A" * size)),
    "tools": lambda size: chat_of(b"", b'"tools":[%b],' % repeated(b'{"a":0}', size)),
    "names": lambda size: chat_of(b"", b"".join(b'"k%d":0,' % at for at in range(size // 11))),
    "one_name": lambda size: chat_of(b"", b'"model":"m",' * (size // 12)),
    "salt": lambda size: chat_of(b"", b'"cache_salt":"%b",' % (b"s" * size)),
    "spaces": lambda size: chat_of(b" " * size),
}


@pytest.mark.parametrize("size", [128 << 10, 2 * MIB, 16 * MIB])
@pytest.mark.parametrize("shape", SHAPES)
def test_reading_takes_at_most_four_times_the_body(shape: str, size: int) -> None:
    """Peak with the body itself, from its scan to its hashes; and nothing but it is kept."""
    made = SHAPES[shape](size)
    tracemalloc.start()
    request = Request()
    request.path, request.body = "/v1/chat/completions", bytes(bytearray(made))
    try:
        request.outline = outline_of(request.body, OUTLINED)
        query = Query(request, read_outline(request.body, request.outline))
        assert query.envelope.model == "m"
        assert 0 < query.text_bytes <= 1.01 * len(made)
        assert len(query.chain) <= 164
    except BodyError:
        assert shape == "nested"
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(made) + MIB
    assert kept < len(made) + (256 << 10)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_more_is_decoded_of_a_longer_body(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work by count: bytes that msgspec decodes."""
    decoded: list[int] = []

    def counting(data: bytes, **options: Any) -> Any:
        decoded.append(len(data))
        return msgspec_decode(data, **options)

    msgspec_decode = long_prompt._decode
    monkeypatch.setattr(long_prompt, "_decode", counting)
    body = SHAPES[shape](4 * MIB)
    read(body)
    assert sum(decoded) <= BLOCK_ENDS[-1] + (64 << 10), "up to what is hashed"
    assert len(decoded) <= body_scan.MAX_ELEMENTS


def test_token_ids_are_counted() -> None:
    body = json.dumps({"model": "m", "prompt": list(range(30_000))}).encode()
    request = Request()
    request.path, request.body = "/v1/completions", body
    request.outline = outline_of(body, OUTLINED)
    query = Query(request, read_outline(body, request.outline))
    assert query.text_bytes == 120_000
    assert not query.chain
