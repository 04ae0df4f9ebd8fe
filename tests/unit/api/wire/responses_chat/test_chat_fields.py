"""Bodies of the Responses API and the chats that they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.wire.input_error import InputError
from kvasir.wire.responses_chat.chat_fields import chat_of_response
from kvasir.wire.text_chain import chat_pieces

HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}


def fields_of(**body: Any) -> dict[str, Any]:
    return chat_of_response({"input": "hi", **body}).fields


def test_a_text_is_a_users_message() -> None:
    assert fields_of() == {"messages": [HI]}


def test_instructions_come_first_and_places_are_told() -> None:
    chat = chat_of_response({"instructions": "Be", "input": [HI, HI]})
    assert chat.fields["messages"] == [{"role": "system", "content": "Be"}, HI, HI]
    assert chat.origins == ["instructions", "input[0]", "input[1]"]


def test_what_else_decides_the_prompt() -> None:
    made = fields_of(tools=[TOOL], tool_choice="none", cache_salt="s", reasoning={"effort": "low"})
    function = {"name": "f", "parameters": {"type": "object"}}
    assert made == {
        "messages": [HI],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "none",
        "cache_salt": "s",
        "reasoning_effort": "low",
    }
    assert fields_of(reasoning={"effort": "none"})["chat_template_kwargs"] == {
        "enable_thinking": False
    }


def test_a_conversation_that_goes_on_has_its_former_text_as_a_prefix() -> None:
    before = b"".join(chat_pieces(fields_of(input=[HI])))
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "x"}
    after = b"".join(chat_pieces(fields_of(input=[HI, call, output])))
    assert after.startswith(before)


@pytest.mark.parametrize(
    ("body", "sentence", "param"),
    [
        ({"input": None}, "input is required", "input"),
        ({"input": []}, "input must not be empty.", "input"),
        ({"input": 5}, "input must be a string or a list of items, not 5.", "input"),
        ({"instructions": 5}, "instructions must be a string.", "instructions"),
        ({"reasoning": 5}, "reasoning must be an object", "reasoning"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort must be a string.", "reasoning.effort"),
    ],
)
def test_bad_fields(body: dict[str, Any], sentence: str, param: str) -> None:
    with pytest.raises(InputError) as refused:
        fields_of(**body)
    assert sentence in str(refused.value)
    assert refused.value.param == param
