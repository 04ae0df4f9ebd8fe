"""Bodies of the Messages API and the chats that they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.wire.input_error import InputError
from kvasir.wire.messages_chat.messages_fields import chat_of_messages
from kvasir.wire.text_chain import chat_pieces

HI = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "x"}


def fields_of(**body: Any) -> dict[str, Any]:
    return chat_of_messages({"messages": [HI], **body}).fields


def test_what_decides_the_prompt() -> None:
    assert fields_of(max_tokens=9, temperature=1) == {"messages": [HI]}
    function = {"name": "f", "parameters": {"type": "object"}}
    assert fields_of(
        system="Be",
        tools=[TOOL],
        tool_choice={"type": "any"},
        thinking={"type": "adaptive"},
        cache_salt="s",
    ) == {
        "messages": [{"role": "system", "content": "Be"}, HI],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "chat_template_kwargs": {"enable_thinking": True},
        "cache_salt": "s",
    }


def test_the_last_message_of_an_assistant_is_continued() -> None:
    made = fields_of(messages=[HI, {"role": "assistant", "content": "Well, "}])
    assert made["continue_final_message"] is True


@pytest.mark.parametrize(
    ("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)]
)
def test_thinking_is_the_template_s_to_show(kind: str, thinks: bool) -> None:
    made = fields_of(thinking={"type": kind, "budget_tokens": 1})
    assert made["chat_template_kwargs"] == {"enable_thinking": thinks}


@pytest.mark.parametrize("thinking", [5, {}, {"type": "deep"}])
def test_other_thinking_is_refused(thinking: Any) -> None:
    with pytest.raises(InputError, match=r"thinking\.type must be .*, not "):
        fields_of(thinking=thinking)


@pytest.mark.parametrize(
    ("config", "effort"), [({"effort": "low"}, "low"), ({"effort": "max"}, "xhigh")]
)
def test_an_effort_is_the_template_s(config: Any, effort: str) -> None:
    assert fields_of(output_config=config)["reasoning_effort"] == effort


def test_an_output_config_without_effort_leaves_the_prompt_as_it_is() -> None:
    assert fields_of(output_config={"format": {}, "effort": None}) == fields_of()
    with pytest.raises(InputError, match="output_config must be an object or null, not 5"):
        fields_of(output_config=5)


def test_a_conversation_that_goes_on_has_its_former_text_as_a_prefix() -> None:
    before = b"".join(chat_pieces(fields_of(system="Be", tools=[TOOL])))
    messages = [HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]
    after = b"".join(chat_pieces(fields_of(system="Be", tools=[TOOL], messages=messages)))
    assert after.startswith(before)


def test_marks_of_caching_change_nothing() -> None:
    marked = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    tool = {**TOOL, "cache_control": {"type": "ephemeral"}}
    made = fields_of(messages=[{"role": "user", "content": [marked]}], tools=[tool])
    assert made == fields_of(tools=[TOOL])
