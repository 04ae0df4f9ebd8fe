"""What of a chat body is for the template alone; its refusals are in test_tool_calls.py."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine_server import byte_tokenizer

from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.server.openai.tools.tool_request import (
    check_tools,
    template_arguments,
    template_tools,
)
from kvasir_engine.text.parsing.message_parser import Parsing

OFF = {"enable_thinking": False, "thinking": False}
ON = {"enable_thinking": True, "thinking": True}


@pytest.mark.parametrize(
    ("effort", "kwargs", "arguments"),
    [
        (None, {}, {}),
        ("low", {}, {"reasoning_effort": "low", **ON}),
        ("low", {"thinking": False}, {"reasoning_effort": "low", **OFF}),
        (None, {"reasoning_effort": "high"}, {"reasoning_effort": "high", **ON}),
        ("none", {}, {"reasoning_effort": "none", **OFF}),
        (None, {"enable_thinking": False}, OFF),
        (None, {"thinking": True}, ON),
        (
            "none",
            {"enable_thinking": True},
            {"reasoning_effort": "none", **ON},
        ),
        ("none", {"thinking": True}, {"reasoning_effort": "none", **ON}),
        (
            None,
            {"enable_thinking": True, "thinking": False},
            {"enable_thinking": True, "thinking": False},
        ),
    ],
)
def test_thinking_is_switched_by_either_name(
    effort: str | None, kwargs: dict[str, Any], arguments: dict[str, Any]
) -> None:
    body = ChatBody(messages=[], reasoning_effort=effort, chat_template_kwargs=kwargs)
    assert template_arguments(body) == arguments


def test_an_effort_that_a_models_template_does_not_know_is_refused() -> None:
    parsing = Parsing.choose(byte_tokenizer(), None, tools="openai", reasoning="openai_gptoss")
    check_tools(ChatBody(messages=[], reasoning_effort="high"), None, parsing)
    check_tools(ChatBody(messages=[], reasoning_effort="minimal"), None, None)
    with pytest.raises(ApiError) as refused:
        check_tools(ChatBody(messages=[], reasoning_effort="minimal"), None, parsing)
    assert refused.value.param == "reasoning_effort"
    assert refused.value.message == (
        "reasoning_effort must for this model be one of low, medium, high, not 'minimal'."
    )


def test_templates_see_a_functions_fields_in_openais_order() -> None:
    sent = {"strict": True, "parameters": {"type": "object"}, "more": 1, "name": "f"}
    functions = [{**sent, "description": "d"}, sent]
    body = ChatBody(
        messages=[], tools=[{"type": "function", "function": each} for each in functions]
    )
    shown = template_tools(body)
    assert shown is not None
    assert [list(each["function"]) for each in shown] == [
        ["name", "description", "parameters", "more"],
        ["name", "parameters", "more"],
    ]
    assert shown[0]["function"] == {k: v for k, v in functions[0].items() if k != "strict"}
