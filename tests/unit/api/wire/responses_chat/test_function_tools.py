"""Tools of the Responses API in a chat's form."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.wire.input_error import InputError
from kvasir.wire.responses_chat.function_tools import chat_choice, chat_tools

TOOLS = chat_tools([{"type": "function", "name": name, "strict": True} for name in "fg"])


def test_a_function_keeps_what_was_given() -> None:
    given = {"type": "function", "name": "f", "description": "d", "strict": False, "more": 1}
    [made] = chat_tools([given])
    assert made == {
        "type": "function",
        "function": {"name": "f", "description": "d", "strict": False},
    }
    assert chat_tools(None) == []


@pytest.mark.parametrize("choice", [None, "auto", "none", "required"])
def test_plain_choices_are_a_chats(choice: str | None) -> None:
    assert chat_choice(choice, TOOLS) == (TOOLS, choice)


def test_a_named_function_and_allowed_ones() -> None:
    named = {"type": "function", "function": {"name": "g"}}
    assert chat_choice({"type": "function", "name": "g"}, TOOLS) == (TOOLS, named)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "g"}]}
    assert chat_choice(allowed, TOOLS) == (TOOLS[1:], "required")


@pytest.mark.parametrize("kind", ["web_search", "mcp", "file_search", "custom", "computer"])
def test_tools_of_a_server_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InputError, match=rf"tools\[0\] is of type '{kind}'") as refused:
        chat_tools([{"type": kind}])
    assert refused.value.code == "unsupported"
    with pytest.raises(InputError, match=f"tool_choice is of type '{kind}'"):
        chat_choice({"type": kind}, TOOLS)


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("all", "tool_choice must be"),
        ({"type": "allowed_tools", "mode": "x"}, "tool_choice.mode must be"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools must be"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "h"}]},
            "tool_choice.tools[0] must name a function of tools, not 'h'.",
        ),
    ],
)
def test_bad_choices(choice: Any, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        chat_choice(choice, TOOLS)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("tools", [5, [5], [{}]])
def test_bad_tools(tools: Any) -> None:
    with pytest.raises(InputError, match=r"^tools"):
        chat_tools(tools)
