"""Input items and the messages that they become."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.wire.input_error import InputError
from kvasir.wire.responses_chat.input_items import Conversation, text_of

CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "rain"}
THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
TOOL_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def said(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def messages_of(*items: Any) -> list[dict[str, Any]]:
    talk = Conversation()
    for at, item in enumerate(items):
        talk.add(item, f"input[{at}]")
    talk.end(f"input[{len(items) - 1}]")
    assert len(talk.origins) == len(talk.messages)
    return talk.messages


def test_reasoning_text_and_calls_are_one_message() -> None:
    assert messages_of(THOUGHT, said("I look."), CALL, {**CALL, "call_id": "b"}, OUTPUT) == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [TOOL_CALL, {**TOOL_CALL, "id": "b"}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "rain"},
    ]


def test_reasoning_begins_a_new_message() -> None:
    first, second = messages_of(said("One."), THOUGHT, said("Two."))
    assert (first["content"], second["content"]) == ("One.", "Two.")
    assert second["reasoning_content"] == "Hm."


def test_reasoning_that_nothing_follows_is_a_message() -> None:
    alone = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    assert messages_of(THOUGHT) == [alone]
    assert messages_of(THOUGHT, {"role": "user", "content": "x"})[0] == alone


def test_a_summary_stands_for_reasoning_and_an_empty_item_for_none() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Short."}]}
    assert messages_of(summary, said("x"))[0]["reasoning_content"] == "Short."
    assert "reasoning_content" not in messages_of({**summary, "summary": []}, said("x"))[0]


def test_a_developer_is_a_system() -> None:
    assert messages_of({"role": "developer", "content": "Be"})[0]["role"] == "system"


def test_texts_of_parts_are_joined() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert text_of(parts, "p") == "a\nb"


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (5, "input[0] must be an object, not 5."),
        ({"role": "tool", "content": "x"}, "input[0].role must be"),
        ({"role": [], "content": "x"}, "input[0].role must be"),
        ({"role": "user"}, "input[0].content must be a string or a list of parts."),
        ({"role": "user", "content": [{"type": "input_image"}]}, "of type 'input_image'"),
        ({"role": "user", "content": [{"type": []}]}, "of type []"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text must be"),
        ({**CALL, "arguments": {}}, "input[0].arguments must be a string, not {}."),
        (CALL, "input[0] is a function_call without an answer"),
        (OUTPUT, "input[0].call_id 'a' is the call_id of no function_call before it."),
        ({"type": "web_search_call"}, "input[0] is an item of type 'web_search_call'"),
        ({"type": "item_reference", "id": "x"}, "'item_reference'"),
        ({"type": "reasoning", "encrypted_content": "x"}, "the server alone that wrote it"),
        ({"type": "reasoning", "content": 5}, "input[0].content must be a list of parts"),
        ({"type": "reasoning", "summary": [{}]}, "input[0].summary[0] must be a part of type"),
    ],
)
def test_bad_items(item: Any, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        messages_of(item)
    assert sentence in str(refused.value)
    assert refused.value.param.startswith("input[0]")
