from __future__ import annotations

import pytest

from kvasir.text.chat_messages import MessageError, detect_content_format, normalise_messages

PARTS = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
        (
            "{% for m in messages %}{% for p in m['content'] | list %}{% endfor %}{% endfor %}",
            "openai",
        ),
        (
            "{% for m in messages %}{% set c = m['content'] %}"
            "{% for p in c %}{% endfor %}{% endfor %}",
            "openai",
        ),
        (
            "{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{% endfor %}",
            "string",
        ),
    ],
)
def test_the_template_says_in_which_form_it_reads_content(source, expected):
    assert detect_content_format(source) == expected


def test_content_takes_the_form_of_the_template():
    messages = [{"role": "user", "content": PARTS, "name": None}, {"role": "user", "content": "c"}]
    assert normalise_messages(messages, "string") == [
        {"role": "user", "content": "a\nb"},
        {"role": "user", "content": "c"},
    ]
    assert [m["content"] for m in normalise_messages(messages, "openai")] == [
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        [{"type": "text", "text": "c"}],
    ]


def test_arguments_of_earlier_tool_calls_become_objects():
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}
    broken = {"id": "2", "function": {"name": "f", "arguments": "{"}}
    [message] = normalise_messages(
        [{"role": "assistant", "content": None, "tool_calls": [call, broken]}], "string"
    )
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert message["tool_calls"][1] == broken


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hello", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": [*PARTS, {"type": "image_url"}]}, "messages[0].content[2]"),
        ({"role": "user", "content": [{"type": ["text"], "text": "a"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
    ],
)
def test_what_a_text_model_cannot_take_is_named(message, param):
    with pytest.raises(MessageError) as caught:
        normalise_messages([message], "string")
    assert caught.value.param == param
    assert param in str(caught.value)
