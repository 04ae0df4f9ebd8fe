"""Anthropic's tools and the choice between them in the form of a chat's."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.wire.input_error import InputError
from kvasir.wire.messages_chat.client_tools import chat_choice, chat_tools

TOOL = {"name": "f", "input_schema": {"type": "object"}}


def test_tools_are_functions() -> None:
    given = [TOOL, {**TOOL, "type": "custom", "description": "D", "strict": True, "other": 1}]
    function = {"name": "f", "parameters": {"type": "object"}}
    assert chat_tools(given) == [
        {"type": "function", "function": function},
        {"type": "function", "function": {**function, "description": "D", "strict": True}},
    ]
    assert chat_tools(None) == []


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices(choice: Any, made: Any) -> None:
    assert chat_choice(choice) == made


@pytest.mark.parametrize(
    ("tools", "sentence", "param"),
    [
        (5, "tools must be a list, not 5.", "tools"),
        ([5], "tools[0] must be an object", "tools[0]"),
        ([TOOL, {"type": "bash_20250124"}], "is of type 'bash_20250124'; only tools", "tools[1]"),
        ([{"name": "f"}], "must be a JSON schema, an object, not None.", "tools[0].input_schema"),
    ],
)
def test_tools_that_are_not_the_client_s_own_are_refused(
    tools: Any, sentence: str, param: str
) -> None:
    with pytest.raises(InputError) as refused:
        chat_tools(tools)
    assert sentence in str(refused.value)
    assert refused.value.param == param


@pytest.mark.parametrize("choice", [5, "any", {}, {"type": []}, {"type": "all"}, {"type": "tool"}])
def test_other_choices_are_refused(choice: Any) -> None:
    with pytest.raises(InputError, match=r"^tool_choice\.(type|name) must be .*, not ") as refused:
        chat_choice(choice)
    assert refused.value.param.startswith("tool_choice.")
