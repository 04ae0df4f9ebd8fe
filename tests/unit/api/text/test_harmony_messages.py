"""Conversations for gpt-oss's template, by a short one that fails where it fails."""

from __future__ import annotations

from typing import Any

from kvasir.text.chat_messages import normalise_messages
from kvasir.text.chat_template import ChatTemplate
from kvasir.text.harmony_messages import harmony_messages, writes_harmony

TEMPLATE = """{%- set last = namespace(name=none) -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
  {%- if "<|channel|>final" in message.content %}{{ raise_exception("tags") }}{% endif -%}
  {%- if "tool_calls" in message -%}
    {%- set call = message.tool_calls[0].function -%}
    {%- if message.content and message.thinking -%}{{ raise_exception("both") }}
    {%- elif message.content or message.thinking -%}
      {{- '<|start|>assistant<|channel|>analysis<|message|>' }}
      {{- message.content or message.thinking }}{{ '<|end|>' }}
    {%- endif -%}
    {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
    {{- call.arguments | tojson }}{{ '<|call|>' }}
    {%- set last.name = call.name -%}
  {%- else -%}
    {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- set last.name = none -%}
  {%- endif -%}
{%- elif message.role == 'tool' -%}
  {%- if last.name is none %}{{ raise_exception("no call") }}{% endif -%}
  {{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}
  {{- message.content | tojson }}{{ '<|end|>' }}
{%- else -%}
  {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif -%}"""
USER = {"role": "user", "content": "hi"}


def call(name: str, arguments: str = "{}", number: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    return made if number is None else {**made, "id": number}


def result(content: Any, number: str | None = None) -> dict[str, Any]:
    made = {"role": "tool", "content": content}
    return made if number is None else {**made, "tool_call_id": number}


def rendered(*messages: dict[str, Any]) -> str:
    template = ChatTemplate(TEMPLATE)
    return template.render(normalise_messages(messages, template.content_format))


def test_a_call_without_content_and_its_result_are_shown() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a": 1}', "1")]}
    assert rendered(USER, calls, result("4 degrees", "1")) == (
        "<|start|>user<|message|>hi<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>"
        '"4 degrees"<|end|><|start|>assistant'
    )


def test_what_was_thought_and_said_before_a_call_is_kept() -> None:
    message = {"role": "assistant", "reasoning_content": "Hm.", "content": "I look."}
    assert "<|message|>Hm.\nI look.<|end|><|start|>assistant to=functions.f<" in rendered(
        USER, {**message, "tool_calls": [call("f")]}, result("x")
    )
    assert "analysis<|message|>I look.<|end|>" in rendered(
        USER, {"role": "assistant", "content": "I look.", "tool_calls": [call("f")]}, result("x")
    )


def test_several_calls_are_told_one_by_one_with_their_results() -> None:
    calls = {
        "role": "assistant",
        "reasoning": "Both.",
        "tool_calls": [call("f", number="1"), call("g", number="2")],
    }
    text = rendered(USER, calls, result("of g", "2"), result("of f", "1"), USER)
    assert text.index("Both.") < text.index("to=functions.f<") < text.index('"of f"')
    assert text.index('"of f"') < text.index("to=functions.g<") < text.index('"of g"')
    assert text.count("Both.") == 1
    unnamed = {**calls, "tool_calls": [call("f"), call("g")]}
    assert rendered(USER, unnamed, result("of f"), result("of g"), USER) == text


def test_results_without_a_call_stand_where_they_stood() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [call("f", number="1")]},
        result("x", "7"),
        {"role": "assistant", "content": "ok", "tool_calls": []},
        result(None),
    ]
    made = harmony_messages(messages)
    assert [each["role"] for each in made] == ["assistant", "tool", "assistant", "tool"]
    assert "tool_calls" not in made[2]
    assert made[3]["content"] == ""


def test_other_templates_get_messages_as_they_are() -> None:
    assert not writes_harmony("<|im_start|>{{ messages[0].content }}")
    template = ChatTemplate("{% for m in messages %}{{ m.content is none }}{% endfor %}")
    assert template.render([{"role": "assistant", "content": None}]) == "True"
