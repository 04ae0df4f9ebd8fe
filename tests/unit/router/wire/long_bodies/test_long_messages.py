"""The leading text of long conversations of the Messages API."""

from typing import Any

import msgspec
import pytest

from kvasir.wire.messages_chat.messages_fields import chat_of_messages
from kvasir.wire.text_chain import chain_hashes, chat_pieces
from kvasir_router.wire.envelope import OUTLINED
from kvasir_router.wire.long_bodies import long_messages
from kvasir_router.wire.long_bodies.body_scan import MAX_ELEMENTS, outline_of
from kvasir_router.wire.long_bodies.long_messages import read_long_messages
from kvasir_router.wire.long_bodies.long_prompt import LongPrompt

TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "ü" * 700},
    {"role": "assistant", "content": [{"type": "text", "text": "b" * 700}]},
]
LAST = {"role": "user", "content": "c"}


def read(body: dict[str, Any]) -> LongPrompt:
    raw = msgspec.json.encode(body)
    return read_long_messages(raw, outline_of(raw, OUTLINED), "")


def text_of(body: dict[str, Any]) -> bytes:
    return b"".join(chat_pieces(chat_of_messages(body).fields))


def test_all_of_it_is_read_up_to_the_bounds() -> None:
    body = {"system": "Be", "messages": [*TURN * 90, LAST], "thinking": {"type": "adaptive"}}
    prompt = read(body)
    assert prompt.text == text_of(body)
    assert prompt.size == len(prompt.text)


@pytest.mark.parametrize(("bound", "value"), [("MAX_DECODED", 5000), ("MAX_VALUES", 25)])
def test_what_is_read_of_a_longer_one_is_its_beginning(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(long_messages, bound, value)
    body = {"system": "Be", "messages": [*TURN * 90, LAST]}
    prompt = read(body)
    assert text_of(body).startswith(prompt.text)
    assert len(prompt.text) > 2000
    assert prompt.size == len(msgspec.json.encode(body))


def test_so_is_what_is_read_of_very_many_messages() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = {"messages": [*messages * (MAX_ELEMENTS // 2), LAST]}
    prompt = read(body)
    whole = chain_hashes([text_of(body)])
    assert chain_hashes([prompt.text]) == whole[: len(chain_hashes([prompt.text]))]
    assert prompt.size == len(msgspec.json.encode(body))


@pytest.mark.parametrize(
    "body",
    [
        {"system": "Be"},
        {"messages": "hi"},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [LAST], "thinking": 5},
        {"messages": [LAST], "tools": [{"name": "x" * 300_000, "input_schema": {}}]},
        {"messages": [{"role": "user", "content": "x" * 1_100_000}]},
    ],
)
def test_what_is_no_chat_has_no_text(body: dict[str, Any]) -> None:
    prompt = read(body)
    assert prompt.text == b""
    assert prompt.size == len(msgspec.json.encode(body))
