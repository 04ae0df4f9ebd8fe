"""What is read of a request's body."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from kvasir.wire.text_chain import (
    BLOCK_BYTES,
    CHAT_FIELDS,
    MAX_MESSAGES,
    chain_hashes,
    chat_pieces,
    chat_text,
)
from kvasir_router.wire import envelope
from kvasir_router.wire.envelope import (
    ADAPTER_FIELDS,
    MAX_VALUES,
    OUTLINED,
    UNREAD,
    Envelope,
    adapter_problem,
    decode_envelope,
    is_bracketed,
    is_dense,
    read_outline,
)
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_scan import outline_of
from kvasir_router.wire.query import BYTES_PER_TOKEN, Query


def make_query(path: str, body: object, lora: str = "") -> Query:
    request = Request()
    request.path = path
    request.body = msgspec.json.encode(body)
    return Query(request, decode_envelope(request.body), lora=lora)


def test_only_the_model_is_checked() -> None:
    envelope = decode_envelope(b'{"model":"m","stream":"perhaps","n":[1],"x":{}}')
    assert (envelope.model, envelope.stream, envelope.n) == ("m", "perhaps", [1])
    with pytest.raises(msgspec.ValidationError):
        decode_envelope(b'{"model":7}')


@pytest.mark.parametrize("name", ADAPTER_FIELDS)
@pytest.mark.parametrize("value", ['"sql"', '["sql",' + " " * 2000 + '"sql"]'])
def test_a_dense_body_may_not_choose_an_adapter_either(name, value) -> None:
    dense = ",".join("0" * (MAX_VALUES + 1))
    envelope = decode_envelope(f'{{"model":"m","{name}":{value},"x":[{dense}]}}'.encode())
    assert envelope.messages is UNREAD
    problem, field = adapter_problem(envelope)
    assert (field, f"`{name}` is " in problem) == (name, True)
    none = decode_envelope(f'{{"model":"m","{name}":null,"x":[{dense}]}}'.encode())
    assert adapter_problem(none) is None


def test_a_conversation_that_goes_on_keeps_its_chain() -> None:
    first = [{"role": "user", "content": "a" * 4 * BLOCK_BYTES}]
    more = [*first, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c" * 2000}]
    short = make_query("/v1/chat/completions", {"model": "m", "messages": first}).chain
    long = make_query("/v1/chat/completions", {"model": "m", "messages": more}).chain
    assert len(short) == 4
    assert list(long[:4]) == list(short)
    assert len(long) > 7


def test_an_adapter_has_a_chain_of_its_own() -> None:
    body = {"model": "m", "prompt": "a" * BLOCK_BYTES}
    base = make_query("/v1/completions", body).chain
    adapted = make_query("/v1/completions", body, lora="a").chain
    assert base
    assert base != adapted


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "m", "input": "a" * 4096}),
        ("/v1/completions", {"model": "m", "prompt": ["a" * 4096, "b" * 4096]}),
        ("/v1/completions", {"model": "m", "prompt": [1] * 4096}),
    ],
)
def test_what_has_no_single_text_has_no_chain(path: str, body: object) -> None:
    assert not make_query(path, body).chain


def test_headers_are_found_by_their_lower_case_name() -> None:
    request = Request()
    request.lines = [b"X-Session-Id:  abc \r\n", b"Other: x\r\n"]
    query = Query(request, Envelope())
    assert query.header(b"x-session-id") == b"abc"
    assert query.header(b"x-none") is None


def test_the_prompt_is_held_once_only() -> None:
    """The chain outlives the decoded prompt, which is as large as the body."""
    query = make_query("/v1/completions", {"model": "m", "prompt": "a" * 4 * BLOCK_BYTES})
    chain = query.chain
    assert query.envelope.prompt is None
    assert query.chain is chain
    assert query.text_bytes > 4 * BLOCK_BYTES


@pytest.mark.parametrize("field", CHAT_FIELDS)
def test_what_decides_the_tokens_decides_the_chain(field: str) -> None:
    body = {"messages": [{"role": "user", "content": "a" * 2 * BLOCK_BYTES}], "tools": [{"a": 1}]}
    plain = make_query("/v1/chat/completions", body)
    other = make_query("/v1/chat/completions", body | {field: ["x"]})
    assert plain.chain == chain_hashes(chat_pieces(body))
    assert set(plain.chain).isdisjoint(other.chain)


def test_a_prompt_of_token_ids_is_as_long_as_they_are_many() -> None:
    query = make_query("/v1/completions", {"prompt": [123456] * 1000})
    assert query.text_bytes == 1000 * BYTES_PER_TOKEN


def test_messages_behind_a_bound_are_not_hashed_and_those_before_it_are() -> None:
    messages = [{"role": "user", "content": str(at)} for at in range(MAX_MESSAGES + 1)]
    pieces = chat_pieces({"messages": messages})
    assert chat_text({}, messages) == b"".join(pieces[:-1])
    query = make_query("/v1/chat/completions", {"model": "m", "messages": messages})
    whole = chain_hashes(pieces)
    assert list(query.chain) == whole[: len(query.chain)]
    assert query.text_bytes == len(query.request.body)


@pytest.mark.parametrize("filler", [b"{}", b"[[]]", b'{"a":0}', b"7"])
@pytest.mark.parametrize("field", ["messages", "prompt", "user", "tools", "stream"])
def test_a_body_of_too_many_values_is_passed_on_unread(field: str, filler: bytes) -> None:
    count = MAX_VALUES + (1 << 20) // len(filler)
    body = b'{"%b":[%b],"model":"m","max_tokens":7}' % (
        field.encode(),
        b",".join([filler] * count),
    )
    envelope = decode_envelope(body)
    assert (envelope.model, envelope.max_tokens) == ("m", 7)
    assert envelope.messages is envelope.prompt is UNREAD
    assert not getattr(envelope, field) or getattr(envelope, field) is UNREAD
    request = Request()
    request.path, request.body = "/v1/chat/completions", body
    query = Query(request, envelope)
    assert not query.chain
    assert query.text_bytes == len(body)


@pytest.mark.parametrize("value", [b"7", b"[]", b"{}"])
def test_bodies_are_counted_from_the_length_on_at_which_they_may_have_too_many_values(
    value: bytes,
) -> None:
    shortest = b"[%b]" % b",".join([b"7"] * MAX_VALUES)
    assert len(shortest) > 2 * MAX_VALUES
    assert is_dense(shortest + b",7")
    body = b",".join([value] * (2 * MAX_VALUES // (len(value) + 1)))[: 2 * MAX_VALUES - 1]
    assert len(msgspec.json.decode(b"[%b]" % body.rstrip(b",[{"))) <= MAX_VALUES
    assert not is_dense(body)


def test_a_long_text_is_not_taken_for_many_values() -> None:
    text = "The quick brown fox, as ever, jumps. " * 100_000
    query = make_query("/v1/chat/completions", {"model": "m", "messages": [{"content": text}]})
    assert len(query.chain) > 100


def test_a_body_that_is_nested_too_deeply_has_no_chain_wherever_it_is_asked_for() -> None:
    def asked_below(frames: int, query: Query) -> object:
        return asked_below(frames - 1, query) if frames else bool(query.chain)

    has_chain = []
    for depth in range(700, 1000, 5):
        body = b'{"model":"m","tools":%b0%b}' % (b"[" * depth, b"]" * depth)
        request = Request()
        request.path, request.body = "/v1/chat/completions", body
        with suppress(RecursionError):
            has_chain.append(asked_below(100, Query(request, decode_envelope(body))))
    assert True in has_chain
    assert False in has_chain


@pytest.mark.parametrize(
    ("unit", "bracketed"),
    [("{},", True), ("[[]],", True), ("word ", False), ('{"role":"user"},', False)],
)
def test_bodies_of_many_brackets_are_not_decoded_at_once(unit: str, bracketed: bool) -> None:
    body = unit.encode() * (60_000 // len(unit))
    assert is_bracketed(body) is bracketed
    assert not is_bracketed(body[:1000])


def test_numbers_are_read_by_python_s_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec takes 9 us for each of these."""
    body = b'{"messages":[1e308,1.5e300,5e-324]}'
    assert decode_envelope(body).messages == [1e308, 1.5e300, 5e-324]
    assert envelope._decode_all.__self__.float_hook is float  # type: ignore[attr-defined]


TEXT = "a" * 2 * BLOCK_BYTES
RESPONSE = {
    "model": "m",
    "instructions": "Be",
    "input": TEXT,
    "tools": [{"type": "function", "name": "f"}],
}
MESSAGES = {
    "model": "m",
    "system": "Be",
    "messages": [{"role": "user", "content": TEXT}],
    "tools": [{"name": "f", "input_schema": {}}],
    "thinking": {"type": "disabled"},
    "cache_salt": "s",
}


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/v1/responses", RESPONSE, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (
            "/v1/messages",
            MESSAGES,
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
                "chat_template_kwargs": {"enable_thinking": False},
                "cache_salt": "s",
            },
        ),
    ],
)
@pytest.mark.parametrize("is_long", [False, True])
def test_a_body_of_another_protocol_has_the_chain_of_its_chat(
    path: str, body: dict[str, Any], fields: dict[str, Any], is_long: bool
) -> None:
    query = make_query(path, {**body, "metadata": {"user_id": "x" * 100_000}})
    if is_long:
        query.request.outline = outline_of(query.request.body, OUTLINED)
        query.envelope = read_outline(query.request.body, query.request.outline)
    messages = [{"role": "system", "content": "Be"}, {"role": "user", "content": TEXT}]
    pieces = chat_pieces({"messages": messages, **fields})
    assert list(query.chain) == chain_hashes(pieces)
    assert query.text_bytes == sum(map(len, pieces))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"model": "m", "input": [{"type": "item_reference"}]}),
        ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": [{}]}]}),
        ("/v1/messages", {"model": "m", "system": "Be"}),
    ],
)
def test_what_is_no_chat_has_no_chain(path: str, body: dict[str, Any]) -> None:
    query = make_query(path, body)
    assert list(query.chain) == []
    assert query.text_bytes == len(query.request.body)
