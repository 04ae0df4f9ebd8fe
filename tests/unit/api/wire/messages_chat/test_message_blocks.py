"""Anthropic's system and messages as messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.wire.input_error import InputError
from kvasir.wire.messages_chat.message_blocks import chat_messages

HI = {"role": "user", "content": "hi"}
TEXT = {"type": "text", "text": "x"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {"city": "Oslo"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "rain"}
CALLED = {"role": "assistant", "content": [USE]}


def messages_of(system: Any, messages: Any) -> list[dict[str, Any]]:
    return chat_messages(system, messages)[0]


def of_user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def test_a_text_and_blocks_of_text_are_the_same() -> None:
    blocks = [{**TEXT, "cache_control": {"type": "ephemeral"}}, {**TEXT, "text": "y"}]
    assert messages_of(None, [of_user(*blocks)]) == [{"role": "user", "content": "x\ny"}]
    assert messages_of("Be", [HI]) == messages_of([{**TEXT, "text": "Be"}], [HI])
    assert messages_of("", [HI]) == [HI]


def test_an_assistant_s_blocks_are_one_message() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    messages = [HI, {"role": "assistant", "content": [thought, TEXT, USE]}, of_user(RESULT)]
    function = {"name": "f", "arguments": {"city": "Oslo"}}
    assert messages_of(None, messages)[1:] == [
        {
            "role": "assistant",
            "content": "x",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "rain"},
    ]


def test_results_keep_their_place_among_texts() -> None:
    made = messages_of(None, [HI, CALLED, of_user(TEXT, RESULT, TEXT, TEXT)])
    assert [(each["role"], each["content"]) for each in made[2:]] == [
        *(("user", "x"), ("tool", "rain"), ("user", "x\nx")),
    ]


def test_places_are_those_of_the_body() -> None:
    _, origins = chat_messages("Be", [HI, CALLED, of_user(TEXT, RESULT, TEXT), HI])
    assert origins == ["system", *(f"messages[{at}]" for at in (0, 1, 2, 2, 2, 3))]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": [TEXT, TEXT]}, "x\nx"),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"is_error": True}, "Error: rain"),
    ],
)
def test_a_result_is_its_text(fields: dict[str, Any], text: str) -> None:
    made = messages_of(None, [HI, CALLED, of_user({**RESULT, **fields})])
    assert made[-1]["content"] == text


@pytest.mark.parametrize(
    ("messages", "sentence", "param"),
    [
        (None, "messages must be a list, not None.", "messages"),
        ([], "messages must not be empty.", "messages"),
        ([5], 'must be "user" or "assistant", not None', "messages[0].role"),
        ([{"role": "system", "content": "x"}], "goes into system", "messages[0].role"),
        ([{"role": "user", "content": 5}], "a list of blocks, not 5.", "messages[0].content"),
        ([of_user()], "messages[0].content must not be empty.", "messages[0].content"),
        (
            [of_user({"type": "image"})],
            "is a block of type 'image'; only text or tool_result is supported here.",
            "messages[0].content[0]",
        ),
        ([of_user(5)], "is a block of type None", "messages[0].content[0]"),
        ([of_user({**TEXT, "text": 5})], "must be a string, not 5.", "messages[0].content[0].text"),
        ([of_user(RESULT)], "is the id of no tool_use", "messages[0].content[0].tool_use_id"),
        (
            [HI, {"role": "assistant", "content": [{**USE, "input": "{}"}]}],
            "must be an object, not '{}'.",
            "messages[1].content[0].input",
        ),
        ([HI, CALLED], "messages[1] ends with a tool_use; add", "messages[1]"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_its_place(
    messages: Any, sentence: str, param: str
) -> None:
    with pytest.raises(InputError) as refused:
        messages_of(None, messages)
    assert sentence in str(refused.value)
    assert refused.value.param == param
